// Checks of the library's own invariants. QUIRE_CHECK is always on: it prints file, line and
// message and aborts. QUIRE_DCHECK does so in builds without NDEBUG only. An error that a caller or
// a file can cause is a Status and never a check.
#pragma once

namespace quire::base {

// Writes "check failed: ..." to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* message);

}  // namespace quire::base

#define QUIRE_CHECK(condition, message)                                     \
  do {                                                                      \
    if (!(condition)) [[unlikely]] {                                        \
      ::quire::base::check_failed(__FILE__, __LINE__, #condition, message); \
    }                                                                       \
  } while (false)

#ifdef NDEBUG
#define QUIRE_DCHECK(condition, message) \
  do {                                   \
  } while (false)
#else
#define QUIRE_DCHECK(condition, message) QUIRE_CHECK(condition, message)
#endif
