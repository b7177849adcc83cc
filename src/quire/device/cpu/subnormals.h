// Sets how a thread's arithmetic treats numbers below the smallest normal one.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire::device {

// While it lives, the calling thread computes with zero in the place of a subnormal number, as
// operand and as result. On Intel attention with many of them took seven times as long. The
// thread's own setting returns with its end. On x86 alone. A compiler may move arithmetic across
// its ends, but not calls through a pointer.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kResults | kOperands); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
#else
  FlushSubnormals() = default;
  ~FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kResults = 0x8000, kOperands = 0x0040;
  unsigned before_;
#endif
};

}  // namespace quire::device
