// Small helpers. Own code, because kernel files must not instantiate std functions. Those would be
// compiled with this file's instruction set and might be linked into everything else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::kernels {
namespace {

constexpr int kMaxBlockRows = 16;

constexpr int min_int(int a, int b) { return a < b ? a : b; }
constexpr int max_int(int a, int b) { return a > b ? a : b; }

inline std::int32_t word_at(const void* p) {
  std::int32_t x = 0;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

// Returns `value` in a register of which the compiler knows nothing more. So a load of `value`
// stays a load of its own, in its place.
template <class T>
T unknown(T value) {
#if defined(__x86_64__)
  __asm__ volatile("" : "+v"(value));
#else
  __asm__ volatile("" : "+w"(value));
#endif
  return value;
}

// Returns `value`, and keeps the order of what is written before and after it where V has few
// registers. Left to itself the compiler makes products of several rows ahead of their sums, more
// than registers hold.
template <class V, class T>
T in_order(T value) {
  if constexpr (V::kFewRegisters) {
    return unknown(value);
  } else {
    return value;
  }
}

// Counts the register tiles of R rows x N registers that cover `rows` x the 32 columns of a panel.
template <class V, int R, int N>
constexpr int tiles_of_panel(int rows) {
  return (rows + R - 1) / R * (32 / (N * V::kLanes));
}

// Returns how many of `rows` the next register tile takes. The rows are then covered by as few
// tiles of at most Max rows as can be, all about as high. A low one would wait for each sum.
template <int Max>
constexpr int even_rows(int rows) {
  const int tiles = (rows + Max - 1) / Max;
  return (rows + tiles - 1) / tiles;
}

// Memory that will be read soon, asked for into the second-level cache. Asks for some lines at a
// time while something else is computed, in the order of addresses, in which memory is fastest.
class Ahead {
 public:
  // Spreads the requests for `bytes` bytes from `from` on over about `asks` calls. Asks for nothing
  // if `from` is null.
  static Ahead over(const std::byte* from, std::ptrdiff_t bytes, int asks) {
    const auto lines = static_cast<int>(bytes / kLineBytes);
    return {from, from == nullptr ? from : from + bytes, (lines + asks - 1) / asks};
  }

  void ask() {
    for (int i = 0; i < lines_ && next_ < end_; ++i, next_ += kLineBytes) {
      __builtin_prefetch(next_, 0, 2);
    }
  }

 private:
  static constexpr int kLineBytes = 64;
  Ahead(const std::byte* next, const std::byte* end, int lines)
      : next_(next), end_(end), lines_(lines) {}

  const std::byte* next_;
  const std::byte* end_;
  int lines_;  // per ask
};

// A row count known at compile time.
template <int R>
struct RowCount {
  static constexpr int kValue = R;
};

// Calls fn(RowCount<min(rows, Max)>{}); rows >= 1.
template <int Max, class Fn>
void with_row_count(int rows, Fn fn) {
  if constexpr (Max > 1) {
    if (rows < Max) {
      return with_row_count<Max - 1>(rows, fn);
    }
  }
  fn(RowCount<Max>{});
}

}  // namespace
}  // namespace quire::kernels
