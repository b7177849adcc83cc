// The element formats of KV as traits over a vector trait V. They say what a word of 4 bytes holds
// (kPack values), and how it is multiplied. Queries and probabilities are Elements; kParts of their
// words meet one KV word. Source of the idea that one layout serves all: tensor/paged_kv_view.h.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/tile.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::attention {
namespace {

constexpr int kWordBytes = 4;
constexpr int kPieceUnits = kPieceTokens / kUnitTokens;
constexpr float kNan = __builtin_nanf("");
constexpr float kExp2Floor = -1000.0f;  // 2^x is 0 from here on

// KV memory seen as words, whatever it holds.
typedef std::uint32_t Word __attribute__((may_alias));

// Returns 2^r = 1 + r * p(r). `terms` of p are fitted for the least maximum of the relative error;
// the result is exactly 1 at 0.
template <class V, int kTerms>
typename V::F exp2_near_zero(typename V::F r, const float (&terms)[kTerms]) {
  typename V::F p = V::set(terms[0]);
#pragma GCC unroll 8
  for (int i = 1; i < kTerms; ++i) {
    p = V::fma(p, r, V::set(terms[i]));
  }
  return V::fma(p, r, V::set(1.0f));
}

// Returns 2^x, x <= 0, by a series for [-1/2, 1/2]. Below -126 the result is 0 or subnormal.
template <class V, int kTerms>
typename V::F exp2_series(typename V::F x, const float (&terms)[kTerms]) {
  const typename V::F clamped = V::max(V::set(kExp2Floor), x);  // this order keeps NaN
  const typename V::F n = V::round(clamped);
  return V::scale_exponent(exp2_near_zero<V>(V::sub(clamped, n), terms), n);
}

// Returns 2^x with relative error below 1.1e-7 (fp32 rounding included).
template <class V>
typename V::F exp2_exact(typename V::F x) {
  constexpr float kTerms[] = {1.53533620e-4f, 1.33988750e-3f, 9.61843692e-3f,
                              5.55033237e-2f, 2.40226477e-1f, 6.93147182e-1f};
  return exp2_series<V>(x, kTerms);
}

// Returns 2^x by a series for [0, 1). One instruction takes x - floor(x) and another multiplies by
// 2^floor(x), so nothing is clamped.
template <class V, int kTerms>
typename V::F exp2_above_floor(typename V::F x, const float (&terms)[kTerms]) {
  return V::scale_exponent(exp2_near_zero<V>(V::above_floor(x), terms), x);
}

// Returns 2^x with relative error below 3e-6, for products with values of bf16.
template <class V>
typename V::F exp2_rough(typename V::F x) {
  if constexpr (requires { V::above_floor(x); }) {
    constexpr float kTerms[] = {1.34266886e-2f, 5.22424672e-2f, 2.41280208e-1f, 6.93044844e-1f};
    return exp2_above_floor<V>(x, kTerms);
  } else {
    constexpr float kTerms[] = {9.58285294e-3f, 5.59064262e-2f, 2.40240991e-1f, 6.93124175e-1f};
    return exp2_series<V>(x, kTerms);
  }
}

// Returns 2^x with relative error below 9e-5, for results that are rounded to bf16, which adds up
// to 2e-3 (the same degree as in FlashAttention-4).
template <class V>
typename V::F exp2_coarse(typename V::F x) {
  constexpr float kTerms[] = {7.70670732e-2f, 2.27644957e-1f, 6.95116794e-1f};
  return exp2_above_floor<V>(x, kTerms);
}

// bf16 pairs times bf16 pairs, by an instruction for it.
template <class V>
struct Bf16 {
  using Element = std::uint16_t;
  using Operand = typename V::I;
  static constexpr int kPack = 2;
  static constexpr int kParts = 1;
  static constexpr bool kCodes = false;   // integers with scales (codes.h)
  static constexpr bool kScaled = false;  // scores and probabilities meet scales (softmax.h)
  static constexpr Word kExponents[] = {0x7f80u, 0x7f800000u};

  using Sum = typename V::F;  // of products
  static Sum no_sum() { return V::zero(); }
  static typename V::F number(Sum sum) { return sum; }
  static Operand load(const Word* words, int) { return V::load_bits(words); }
  static Operand input(const Word* x) { return V::set_bits(kernels::word_at(x)); }
  static typename V::F multiply_add(typename V::F acc, Operand columns, Operand x) {
    return V::dot_bf16(acc, columns, x);
  }
  static constexpr bool kStoresTwo = true;
  static void store(Element* p, typename V::F x) { V::store_bf16(p, x); }
  static void store(Element* p, typename V::F x, typename V::F y) { V::store_bf16(p, x, y); }
  static typename V::F exp2(typename V::F x) { return exp2_coarse<V>(x); }
};

template <class V>
struct Fp32 {
  using Element = float;
  using Operand = typename V::F;
  static constexpr int kPack = 1;
  static constexpr int kParts = 1;
  static constexpr bool kCodes = false;
  static constexpr bool kScaled = false;
  static constexpr Word kExponents[] = {0x7f800000u};

  using Sum = typename V::F;
  static Sum no_sum() { return V::zero(); }
  static typename V::F number(Sum sum) { return sum; }
  static Operand load(const Word* words, int) {
    return V::load(reinterpret_cast<const float*>(words));
  }
  static Operand input(const Word* x) {
    float value = 0;
    __builtin_memcpy(&value, x, sizeof value);
    return V::set(value);
  }
  static typename V::F multiply_add(typename V::F acc, Operand columns, Operand x) {
    return V::add_product(acc, columns, x);
  }
  static constexpr bool kStoresTwo = false;  // numbers of two vectors at once
  static void store(Element* p, typename V::F x) { V::store(p, x); }
  static typename V::F exp2(typename V::F x) { return exp2_exact<V>(x); }
};

// bf16 pairs widened in registers times fp32: queries and probabilities are not rounded.
template <class V>
struct WideBf16 : Fp32<V> {
  static constexpr int kPack = 2;
  static constexpr int kParts = 2;
  static constexpr Word kExponents[] = {0x7f80u, 0x7f800000u};

  static typename V::F load(const Word* words, int part) {
    return part == 0 ? V::low_half(V::load_bits(words)) : V::high_half(V::load_bits(words));
  }
  static typename V::F exp2(typename V::F x) { return exp2_rough<V>(x); }
};

}  // namespace
}  // namespace quire::attention
