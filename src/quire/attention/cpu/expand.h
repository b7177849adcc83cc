// KV as codes of fp8 and int4 for vectors: units are expanded to fp32, exactly as
// kernels/kv_codes.h says what codes stand for. From there on they are multiplied as fp32 KV is,
// with queries and probabilities in fp32.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/products.h"

namespace quire::attention {
namespace {

// Room for what codes of a unit are scaled by.
struct UnitScales {
  alignas(64) float keys[kMaxHeadDim];  // fp8: by token; int4: by channel
  alignas(64) float key_minimums[kMaxHeadDim];
  alignas(64) float values[kMaxHeadDim];  // fp8: by token; int4: by group and token
  alignas(64) float value_minimums[kMaxHeadDim];
};

// Sets the scales of a unit's tokens, of K and of V, where each block has one of either: fp32.
// Those of tokens outside `tokens` become 0, unless the unit lies in one block.
template <class V>
void load_block_scales(const AttentionTask& t, int first, TokenRange tokens, float* keys,
                       float* values) {
  float scales[2] = {};
  const bool in_place = t.block_tokens % kUnitTokens == 0;
  if (in_place) {
    __builtin_memcpy(scales, block_of(t, first) + t.scale_offset, sizeof scales);
  }
  for (int i = 0; i < kUnitTokens; i += V::kLanes) {
    V::store(keys + i, V::set(scales[0]));
    V::store(values + i, V::set(scales[1]));
  }
  if (in_place) {
    return;
  }
  for_each_block_range(t, tokens.begin, tokens.end,
                       [&](const std::byte* block, int, int token, int count) {
                         __builtin_memcpy(scales, block + t.scale_offset, sizeof scales);
                         for (int i = token - first; i < token - first + count; ++i) {
                           keys[i] = scales[0];
                           values[i] = scales[1];
                         }
                       });
}

// Codes e4m3.
template <class V>
struct Fp8 {
  static constexpr int kPack = 4;
  static constexpr bool kCodes = true;

  static int scales_bytes(const AttentionTask&) { return 2 * int{sizeof(float)}; }
  static void load_scales(const AttentionTask& t, int first, TokenRange tokens, UnitScales& to) {
    load_block_scales<V>(t, first, tokens, to.keys, to.values);
  }

  // Returns the numbers of one code of each word. With an exponent e > 0 a magnitude is
  // 2^(e - 7) (1 + m / 8). With e = 0 it is twice that less 2^-6. It is always the smaller of both,
  // which are made as negative numbers here.
  static typename V::F number(typename V::I words, int index) {
    constexpr std::int32_t kSign = -0x7fffffff - 1;
    const typename V::I code = V::shift_right(words, 8 * code_place<Fp8>(index));
    const typename V::I magnitude = V::shift_left(V::and_bits(code, V::set_bits(0x7f)), 20);
    const typename V::F normal =
        V::as_float(V::add_bits(magnitude, V::set_bits(kSign + (120 << 23))));
    const typename V::F small = V::add(
        V::as_float(V::add_bits(magnitude, V::set_bits(kSign + (121 << 23)))), V::set(0x1p-6f));
    const typename V::I sign = V::and_bits(V::shift_left(code, 24), V::set_bits(kSign));
    const typename V::I negative = V::xor_bits(V::as_bits(V::max(normal, small)), sign);
    return V::as_float(V::xor_bits(negative, V::set_bits(kSign)));
  }

  static typename V::F key(const UnitScales& scales, typename V::I words, int dim, int token) {
    return V::mul(number(words, dim % kPack), V::load(scales.keys + token));
  }
  static typename V::F value(const UnitScales& scales, typename V::I words, int token, int) {
    return V::mul(number(words, token % kPack), V::set(scales.values[token]));
  }
};

// Codes of 4 bits. Blocks have whole units of 32 tokens, which are runs of K's scales.
template <class V>
struct Int4 {
  static constexpr int kPack = 8;
  static constexpr bool kCodes = true;
  static constexpr int kGroup = 32;  // channels of V that share scales

  static int scales_bytes(const AttentionTask& t) {
    return 8 * t.padded_dim * (t.block_tokens / kUnitTokens);
  }
  // Returns the scales of a unit that begins at token `first`.
  static const std::byte* scales_of(const AttentionTask& t, int first) {
    const std::ptrdiff_t unit = first % t.block_tokens / kUnitTokens;
    return block_of(t, first) + t.scale_offset + unit * 8 * t.padded_dim;
  }
  static void load_scales(const AttentionTask& t, int first, TokenRange, UnitScales& to) {
    const std::byte* at = scales_of(t, first);
    at = load(at, t.padded_dim, to.keys);
    at = load(at, t.padded_dim, to.key_minimums);
    for (int d = 0; d < t.padded_dim; d += kGroup) {
      at = load(at, kUnitTokens, to.values + d);
      at = load(at, kUnitTokens, to.value_minimums + d);
    }
  }
  static const std::byte* load(const std::byte* from, int count, float* to) {
    for (int i = 0; i < count; i += V::kLanes) {
      V::store(to + i, V::load_fp16(from + std::ptrdiff_t{2} * i));
    }
    return from + std::ptrdiff_t{2} * count;
  }

  static typename V::F number(typename V::I words, int index) {
    const typename V::I code = V::shift_right(words, 4 * code_place<Int4>(index));
    return V::to_float(V::and_bits(code, V::set_bits(15)));
  }
  // Returns code * scale + minimum. The product is exact, so one rounding is the definition's.
  static typename V::F key(const UnitScales& scales, typename V::I words, int dim, int) {
    return V::fma(number(words, dim % kPack), V::set(scales.keys[dim]),
                  V::set(scales.key_minimums[dim]));
  }
  static typename V::F value(const UnitScales& scales, typename V::I words, int token, int dim) {
    static_assert(kGroup == kUnitTokens, "a group's scales are as many as its channels");
    const int at = dim / kGroup * kGroup + token;
    return V::fma(number(words, token % kPack), V::set(scales.values[at]),
                  V::set(scales.value_minimums[at]));
  }
};

// Makes fp32 units of codes C.
template <class V, class C>
struct ExpandedUnits {
  // Makes K [padded_dim][32] of words [padded_dim / kPack][stride].
  static void keys(const Word* words, std::ptrdiff_t stride, int padded_dim,
                   const UnitScales& scales, float* out, kernels::Ahead& ahead) {
    for (int dim = 0; dim < padded_dim; dim += C::kPack, words += stride) {
      for (int token = 0; token < kUnitTokens; token += V::kLanes) {
        ahead.ask();
        const typename V::I of = V::load_bits(words + token);
#pragma GCC unroll 8
        for (int i = 0; i < C::kPack; ++i) {
          V::store(out + (dim + i) * kUnitTokens + token, C::key(scales, of, dim + i, token));
        }
      }
    }
  }

  // Makes V [32][padded_dim] of words [32 / kPack][padded_dim].
  static void values(const Word* words, int padded_dim, const UnitScales& scales, float* out,
                     kernels::Ahead& ahead) {
    for (int token = 0; token < kUnitTokens; token += C::kPack, words += padded_dim) {
      for (int dim = 0; dim < padded_dim; dim += V::kLanes) {
        ahead.ask();
        const typename V::I of = V::load_bits(words + dim);
#pragma GCC unroll 8
        for (int i = 0; i < C::kPack; ++i) {
          V::store(out + (token + i) * padded_dim + dim, C::value(scales, of, token + i, dim));
        }
      }
    }
  }

  // Returns the view of a piece whose units lie in scratch, each in a place of its own behind a
  // gathered piece's. Asks for the next piece meanwhile.
  static PieceView view_of(const AttentionTask& t, int piece, const PieceRows& rows) {
    PieceView view = view_piece<C>(t, piece, rows, rows.end);
    look_ahead(t, piece, view);
    const TokenRange seen = seen_by_some(t, rows);
    const unsigned kept = kept_units(t, piece, rows.units);
    const std::ptrdiff_t unit_words = std::ptrdiff_t{kUnitTokens} * t.padded_dim;
    float* const first = reinterpret_cast<float*>(t.scratch) +
                         std::ptrdiff_t{2} * kPieceUnits * (unit_words / C::kPack);
    const int steps = 2 * kUnitTokens / C::kPack * t.padded_dim / V::kLanes;
    UnitScales scales;
    for (int i = 0; i < view.units; ++i) {
      float* const k = first + view.unit[i] * unit_words;
      float* const v = k + kPieceUnits * unit_words;
      if ((kept >> view.unit[i] & 1u) == 0) {
        const int in_piece = view.unit[i] * kUnitTokens;
        const auto* next = reinterpret_cast<const std::byte*>(view.after_v[i]);
        auto ahead = kernels::Ahead::over(view.after_v[i] == view.v[i] ? nullptr : next,
                                          t.scale_offset + C::scales_bytes(t), steps);
        C::load_scales(t, piece * kPieceTokens + in_piece, tokens_of_unit(piece, seen, in_piece),
                       scales);
        keys(view.k[i], view.k_stride, t.padded_dim, scales, k, ahead);
        values(view.v[i], t.padded_dim, scales, v, ahead);
      }
      view.k[i] = reinterpret_cast<const Word*>(k);
      view.v[i] = view.after_v[i] = reinterpret_cast<const Word*>(v);
      view.value_words[i] *= C::kPack;
    }
    view.k_stride = kUnitTokens;
    return view;
  }
};

}  // namespace
}  // namespace quire::attention
