// Tells whether a sanitizer watches. Then tests that walk at random take fewer steps, and KV that
// is kept is compared with what computing it gives.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUIRE_SANITIZED
#endif
#endif

namespace quire::base {

#if defined(QUIRE_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace quire::base
