// Measures the best of a vector trait: loads that feed nothing, and products of registers with
// twelve independent sums. The compiler must take their operands for new each time.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"
#include "quire/kernels/cpu/quant_vec.h"

namespace quire::kernels {
namespace {

constexpr int kPeakRows = 6;  // x 2 registers of columns, as the tallest tiles have them
constexpr int kPeakColumns = 2;
constexpr int kPeakSums = kPeakRows * kPeakColumns;

template <class V>
void read_bytes(const std::byte* data, std::int64_t bytes) {
  constexpr int kRound = 256;
  constexpr int kAhead = 4096;
  for (const std::byte* end = data + bytes; data != end; data += kRound) {
#pragma GCC unroll 4
    for (int i = 0; i < kRound; i += 64) {
      __builtin_prefetch(data + kAhead + i);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRound; i += V::kLanes * 4) {
      (void)unknown(V::load_bits(data + i));
    }
  }
}

// Adds products of x and w to every sum, again and again. All loops over sums are unrolled, because
// they must stay in registers.
template <class V, class Sum, class Operand, class Multiply>
[[gnu::always_inline]] inline void add_products(std::int64_t iterations, Sum (&sums)[kPeakSums],
                                                Operand (&w)[kPeakColumns], Operand x,
                                                Multiply multiply) {
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 2
    for (int n = 0; n < kPeakColumns; ++n) {
      w[n] = unknown(w[n]);
    }
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; ++j) {
      x = j % kPeakColumns == 0 ? unknown(x) : x;
      sums[j] = in_order<V>(multiply(sums[j], w[j % kPeakColumns], x));
    }
  }
}

template <class V>
[[gnu::always_inline]] inline void store_total(const typename V::F (&sums)[kPeakSums], float* to) {
  typename V::F total = V::zero();
#pragma GCC unroll 12
  for (int i = 0; i < kPeakSums; ++i) {
    total = V::add(total, sums[i]);
  }
  V::store(to, total);
}

template <class V>
[[gnu::always_inline]] inline void clear(typename V::F (&sums)[kPeakSums]) {
#pragma GCC unroll 12
  for (int i = 0; i < kPeakSums; ++i) {
    sums[i] = V::zero();
  }
}

template <class V>
void peak_f32(const PeakTask& t) {
  using F = typename V::F;
  const auto* operands = reinterpret_cast<const float*>(t.operands);
  F w[kPeakColumns] = {V::load(operands), V::load(operands + 16)};
  F sums[kPeakSums];
  clear<V>(sums);
  add_products<V>(t.iterations, sums, w, V::load(operands + 32),
                  [](F sum, F a, F b) { return V::fma(a, b, sum); });
  store_total<V>(sums, t.sink);
}

template <class V>
void peak_bf16(const PeakTask& t) {
  using I = typename V::I;
  using F = typename V::F;
  I w[kPeakColumns] = {V::load_bits(t.operands), V::load_bits(t.operands + 64)};
  F sums[kPeakSums];
  clear<V>(sums);
  add_products<V>(t.iterations, sums, w, V::load_bits(t.operands + 128),
                  [](F sum, I a, I b) { return V::dot_bf16(sum, a, b); });
  store_total<V>(sums, t.sink);
}

template <class V>
[[gnu::always_inline]] inline void clear_bits(typename V::I (&sums)[kPeakSums]) {
#pragma GCC unroll 12
  for (int i = 0; i < kPeakSums; ++i) {
    sums[i] = V::set_bits(0);
  }
}

template <class V>
[[gnu::always_inline]] inline void store_integers(const typename V::I (&sums)[kPeakSums],
                                                  float* to) {
  typename V::F numbers[kPeakSums];
#pragma GCC unroll 12
  for (int i = 0; i < kPeakSums; ++i) {
    numbers[i] = V::to_float(sums[i]);
  }
  store_total<V>(numbers, to);
}

template <class V>
void peak_int16(const PeakTask& t) {
  using I = typename V::I;
  I w[kPeakColumns] = {V::load_bits(t.operands), V::load_bits(t.operands + 64)};
  I sums[kPeakSums];
  clear_bits<V>(sums);
  add_products<V>(t.iterations, sums, w, V::load_bits(t.operands + 128),
                  [](I sum, I a, I b) { return V::dot_int16(sum, a, b); });
  store_integers<V>(sums, t.sink);
}

// Repeats the dot products of format Q. An operand is unpacked once for a tile, as kernels do it.
template <class V, class Q>
void peak_quant(const PeakTask& t) {
  using I = typename V::I;
  I w[kPeakColumns] = {V::low_nibbles(V::load_bits(t.operands)),
                       V::low_nibbles(V::load_bits(t.operands + 64))};
  I sums[kPeakSums];
  clear_bits<V>(sums);
  add_products<V>(t.iterations, sums, w, V::load_bits(t.operands + 128),
                  [](I sum, I a, I b) { return group_dot<V, Q>(sum, a, b); });
  store_integers<V>(sums, t.sink);
}

}  // namespace
}  // namespace quire::kernels
