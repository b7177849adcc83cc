// KV as int8 codes with a scale for each token: everything about one piece but the products, which
// are in integers.
//
// Every instruction set but AMX (amx_codes.h) computes the same: a query row is rounded to integers
// of 16 bits, its largest element to 32767. A score is the exact sum of integer products, times the
// scale of the key, times that of the row. A weight is a probability times the scale of the value.
// The weights of a piece are rounded to integers of 16 bits, the row's largest to 32767. The values
// of a piece are exact sums again. No sum passes 2^31: 32767 * 127 * 512. Queries of larger heads
// are rounded to half as many integers.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/queries.h"
#include "quire/attention/cpu/softmax.h"

namespace quire::attention {
namespace {

constexpr float kLargestInt16 = 32767.0f;
constexpr int kMostExactDim = 512;    // of heads whose queries are integers up to that
constexpr float kLeastPeak = 1e-30f;  // smaller ones are taken for 0: their inverse would overflow

// Four codes times two pairs of integers of 16 bits. A word's even bytes are its first two values,
// so that the others lie in their order (tensor::int8_place).
template <class V>
struct Int8 {
  using Element = std::int16_t;
  using Operand = typename V::I;
  using Sum = typename V::I;
  static constexpr int kPack = 4;
  static constexpr int kParts = 2;
  static constexpr bool kCodes = true;
  static constexpr bool kScaled = false;  // here, not in softmax.h
  static constexpr bool kStoresTwo = false;

  // Returns the bytes of the scales of a block.
  static int scales_bytes(const AttentionTask& t) { return 4 * t.block_tokens; }
  static Sum no_sum() { return V::set_bits(0); }
  static typename V::F number(Sum sum) { return V::to_float(sum); }
  static Operand load(const Word* words, int part) {
    return part == 0 ? V::even_bytes(V::load_bits(words)) : V::odd_bytes(V::load_bits(words));
  }
  static Operand input(const Word* x) { return V::set_bits(kernels::word_at(x)); }
  static Sum multiply_add(Sum acc, Operand columns, Operand x) {
    return V::dot_int16(acc, columns, x);
  }
  static void store(Element* p, typename V::F x) { V::store_int16(p, V::to_int(x)); }
  static typename V::F exp2(typename V::F x) { return exp2_rough<V>(x); }

  // Stores one unit of a row of weights: numbers times `factor`.
  static void store_weights(PieceBuffers<Int8>& b, int row, int unit, const float* numbers,
                            float factor) {
    for (int i = 0; i < kUnitTokens; i += V::kLanes) {
      store(b.probs[unit][row] + i, V::mul(V::load(numbers + i), V::set(factor)));
    }
  }
};

// Makes integers up to 32767 of numbers whose largest is `peak`, and back.
struct Int16Scale {
  float factor = 0;
  float unit = 0;
};

inline Int16Scale int16_scale(float peak, float largest = kLargestInt16) {
  if (peak > kLeastPeak) {
    return {largest / peak, peak / largest};
  }
  return {};
}

// Loads one row of a tile. A scale that is NaN says that the row holds something not finite.
template <class V>
void load_coded_query(const QueryTask& t, int row, const float* cos, const float* sin) {
  alignas(64) float x[kMaxHeadDim];
  kernels::rotate<V>(
      {.head = t.heads[row], .cos = cos, .sin = sin, .half = t.half, .size = t.head_dim, .out = x});
  for (int i = t.head_dim; i < t.padded_dim; ++i) {
    x[i] = 0;
  }
  typename V::F peak = V::zero(), not_finite = V::zero();
  for (int i = 0; i < t.padded_dim; i += V::kLanes) {
    const typename V::F value = V::mul(V::load(x + i), V::set(t.scale));
    peak = V::max(peak, V::abs(value));
    not_finite = V::add(not_finite, V::sub(value, value));  // 0, or NaN
    V::store(x + i, value);
  }
  const bool is_large = t.padded_dim > kMostExactDim;
  const Int16Scale scale =
      int16_scale(V::reduce_max(peak), is_large ? kLargestInt16 / 2 : kLargestInt16);
  t.scales[row] = scale.unit + V::reduce_add(not_finite);
  for (int i = 0; i < t.padded_dim; i += V::kLanes) {
    Int8<V>::store(element_at<Int8<V>>(t, row, i), V::mul(V::load(x + i), V::set(scale.factor)));
  }
}

template <class V>
void load_coded_queries(const QueryTask& t) {
  for (int row = 0; row < t.rows; ++row) {
    const std::ptrdiff_t angles = std::ptrdiff_t{row / t.rows_per_angle} * t.half;
    load_coded_query<V>(t, row, t.cos + angles, t.sin + angles);
  }
}

// Copies the scales of tokens [begin, end), all in one unit from `first` on: of K, then of V.
inline void gather_scales(const AttentionTask& t, int slots, int first, TokenRange tokens,
                          std::uint16_t (&out)[2][kUnitTokens]) {
  for_each_block_range(
      t, tokens.begin, tokens.end, [&](const std::byte* block, int slot, int token, int count) {
        const std::byte* from = block + t.scale_offset + 2 * slot;
        for (int part = 0; part < 2; ++part, from += 2 * slots) {
          __builtin_memcpy(out[part] + (token - first), from, static_cast<std::size_t>(count) * 2);
        }
      });
}

// Loads the scales of the view's columns. Those of tokens that no row sees may be anything.
template <class V, class E>
void load_scales(const AttentionTask& t, int piece, const PieceRows& rows, const PieceView& view,
                 PieceBuffers<E>& b) {
  const TokenRange seen = seen_by_some(t, rows);
  const int slots = stored_slots<Int8<V>>(t);
  for (int i = 0; i < view.units; ++i) {
    const int in_piece = view.unit[i] * kUnitTokens, first = piece * kPieceTokens + in_piece;
    alignas(64) std::uint16_t gathered[2][kUnitTokens] = {};
    const void* keys = gathered[0];
    const void* values = gathered[1];
    if (t.block_tokens % kUnitTokens == 0) {
      const std::byte* scales =
          block_of(t, first) + t.scale_offset + std::ptrdiff_t{2} * (first % t.block_tokens);
      keys = scales;
      values = scales + std::ptrdiff_t{2} * slots;
    } else {
      gather_scales(t, slots, first, tokens_of_unit(piece, seen, in_piece), gathered);
    }
    for (int lane = 0; lane < kUnitTokens; lane += V::kLanes) {
      const std::ptrdiff_t bytes = std::ptrdiff_t{2} * lane;
      V::store(b.key_scales + i * kUnitTokens + lane,
               V::load_fp16(static_cast<const std::byte*>(keys) + bytes));
      V::store(b.value_scales + i * kUnitTokens + lane,
               V::load_fp16(static_cast<const std::byte*>(values) + bytes));
    }
  }
}

// Asks for the scales of the piece that comes next, so many bytes of each block.
inline void ask_for_scales(const AttentionTask& t, int piece, int bytes) {
  constexpr int kLineBytes = 64;
  const NextPiece next =
      piece + 1 < t.last_piece ? NextPiece{t.kv, t.blocks, t.num_blocks, piece + 1} : t.next;
  const int first = next.piece * kPieceTokens / t.block_tokens;
  const int end = min_int(first + kPieceTokens / t.block_tokens, next.num_blocks);
  for (int block = first; block < end; ++block) {
    if (next.blocks[block] >= 0) {
      const std::byte* scales = next.kv + next.blocks[block] * t.block_stride + t.scale_offset;
      for (int at = 0; at < bytes; at += kLineBytes) {
        __builtin_prefetch(scales + at, 0, 2);
      }
    }
  }
}

// Makes scores of sums of integer products.
template <class V, class E>
void scale_scores(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b) {
  for (int r = 0; r < t.rows; ++r) {
    const typename V::F unit = V::set(t.q_scales[r]);
    for (int i = 0; i < view.units * kUnitTokens; i += V::kLanes) {
      float* score = &b.scores[r][i];
      V::store(score, V::mul(V::mul(V::load(score), V::load(b.key_scales + i)), unit));
    }
  }
}

// Rounds the weights of a row to integers.
template <class E>
void round_weights(PieceBuffers<E>& b, int row, int units, float peak) {
  const Int16Scale scale = int16_scale(peak);
  b.weight_scales[row] = scale.unit;
  for (int unit = 0; unit < units; ++unit) {
    E::store_weights(b, row, unit, &b.scores[row][unit * kUnitTokens], scale.factor);
  }
}

// Makes weights, maximum and sum of rows [row, row + R) of scores, as softmax_rows does it.
template <class V, class E, int R>
void weigh_rows(PieceBuffers<E>& b, int row, TokenRange seen, int columns) {
  row_maxima<V, E, R>(b, row, seen);
  typename V::F sums[R], peaks[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    sums[r] = peaks[r] = V::zero();
  }
  for (int i = 0; i < columns; i += V::kLanes) {
    const bool some = seen.begin < i + V::kLanes && i < seen.end;
    const bool whole = seen.begin <= i && i + V::kLanes <= seen.end;
    const typename V::F scale = V::load(b.value_scales + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* const score = &b.scores[row + r][i];
      if (!some) {
        V::store(score, V::zero());
        continue;
      }
      typename V::F p = E::exp2(V::sub(V::load(score), V::set(b.max[row + r])));
      typename V::F weight = V::mul(p, scale);
      if (!whole) {
        p = keep_seen<V>(p, i, seen, V::zero());
        weight = keep_seen<V>(weight, i, seen, V::zero());
      }
      sums[r] = V::add(sums[r], p);
      peaks[r] = V::max(peaks[r], weight);
      V::store(score, weight);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    b.sum[row + r] = V::reduce_add(sums[r]);
    round_weights(b, row + r, columns / kUnitTokens, V::reduce_max(peaks[r]));
  }
}

// Computes maxima, sums and values of a piece, against its own maxima. Codes are integers: those
// that no row sees are multiplied with zeros, whatever they are.
template <class V, class P>
void reduce_codes(const AttentionTask& t, int piece, const PieceRows& rows, PieceView& view,
                  PieceBuffers<typename P::Format>& b) {
  using E = typename P::Format;
  load_scales<V, E>(t, piece, rows, view, b);
  ask_for_scales(t, piece, Int8<V>::scales_bytes(t));
  P::scores(t, view, b);
  scale_scores<V, E>(t, view, b);
  cap_scores<V>(t, view, b);
  const int columns = view.units * kUnitTokens;
  for_each_four(
      t, rows, view,
      [&](auto count, int row, TokenRange seen) {
        weigh_rows<V, E, count.kValue>(b, row, seen, columns);
      },
      [&](int row) {
        b.weight_scales[row] = 0;
        clear_row(b, row, view.units);
      });
  P::values(t, view, b, b.values);
  for (int r = 0; r < t.rows; ++r) {
    const typename V::F unit = V::set(b.weight_scales[r]);
    float* const values = b.values + std::ptrdiff_t{r} * t.padded_dim;
    for (int d = 0; d < t.padded_dim; d += V::kLanes) {
      V::store(values + d, V::mul(V::load(values + d), unit));
    }
  }
}

}  // namespace
}  // namespace quire::attention
