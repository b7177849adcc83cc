// Small helpers. Own code, because kernel files must not instantiate std functions: those would be
// compiled with this file's instruction set and might be linked into everything else.
#pragma once

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
