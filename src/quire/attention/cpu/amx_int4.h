// int4 on AMX tiles. A unit is a run of K: within it a channel has one scale s and one minimum m.
// A code c is widened to c - 7.5, and m + 7.5 s is what is left. So
//   score = sum (q s) (c - 7.5) + sum q (m + 7.5 s)       over channels
//   value = sum (p s) (c - 7.5) + sum p (m + 7.5 s)       over tokens, for a group of channels
// Queries times scales and probabilities times scales are rounded to bf16, once for each unit and
// row. In the sums on the right, queries and m + 7.5 s have two parts of bf16 each, so 16 bits;
// those of values are fp32. Queries come in fp32.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/amx_codes.h"

namespace quire::attention {
namespace {

constexpr float kMiddleCode = 7.5f;

// Holds code - 7.5 in bf16, for all codes and twice.
struct NibbleTable {
  alignas(64) std::uint16_t numbers[32] = {};
  constexpr NibbleTable() {
    for (int i = 0; i < 32; ++i) {
      const float number = static_cast<float>(i % 16) - kMiddleCode;
      numbers[i] = static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, number) >> 16);
    }
  }
};
constexpr NibbleTable kNibbleTable;

// Makes pairs of bf16 of words of eight codes. One look-up takes 32 codes, of the lowest five bits
// of 16: the fifth is another code's and changes nothing.
struct Bf16OfNibbles {
  using V = kernels::VecAvx512;
  static constexpr int kRows = 4;
  static constexpr int kCodeBits = 4;
  V::I table = _mm512_load_si512(kNibbleTable.numbers);

  void store(V::I codes, Word* to, std::ptrdiff_t stride) const {
    V::store_bits(to, _mm512_permutexvar_epi16(codes, table));
    V::store_bits(to + stride,
                  _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, kCodeBits), table));
    V::store_bits(to + 2 * stride,
                  _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 2 * kCodeBits), table));
    V::store_bits(to + 3 * stride,
                  _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 3 * kCodeBits), table));
  }
};

// Probabilities stay fp32: each group rounds them after its own scale.
struct FoldedFormat : Fp32<kernels::VecAvx512> {
  using V = kernels::VecAvx512;
  static constexpr bool kStoresTwo = true;
  static void store(float* p, V::F x) { V::store(p, x); }
  static void store(float* p, V::F x, V::F y) {
    V::store(p, x);
    V::store(p + V::kLanes, y);
  }
  static V::F exp2(V::F x) { return exp2_coarse<V>(x); }
};

struct Int4Units : CodeUnits<Int4<kernels::VecAvx512>, Bf16OfNibbles, FoldedFormat> {
  using Base = CodeUnits<Int4<kernels::VecAvx512>, Bf16OfNibbles, FoldedFormat>;
  using Pairs = kernels::VecAvx512Bf16;
  static constexpr int kChunks = kMaxHeadDim / kUnitTokens;  // of 32 channels
  static constexpr int kGroup = Stored::kGroup;
  static constexpr std::ptrdiff_t kScaleBytes = 2;
  static_assert(kGroup == 32, "a group of V is a chunk of K and two tiles wide");

  // Holds what belongs to a strip. Two parts of bf16 add up to a number.
  struct Room {
    alignas(64) std::uint16_t query_parts[2][kChunks][kStripRows][32];
    alignas(64) Word middle_parts[16][16];  // pairs of a chunk; one column for a unit and part
    alignas(64) float unit_sums[kStripRows][2 * kPieceUnits];
    alignas(64) float first_scores[kStripRows][V::kLanes];  // of one unit, the same in each column
    alignas(64) std::uint16_t queries[kChunks][kStripRows][32];        // of one unit, times scales
    alignas(64) std::uint16_t weights[2][2][kStripRows][kUnitTokens];  // of two units in turn
    alignas(64) float value_sums[kChunks][kStripRows][V::kLanes];

    explicit Room(const AttentionTask& t) {
      for (int d = 0; d < t.padded_dim; d += 32) {
        for (int r = 0; r < t.rows; ++r) {
          const float* q = queries_of(t, d) + r * V::kLanes;
          const Parts parts = parts_of(V::load(q), V::load(q + t.rows * V::kLanes));
          V::store_bits(query_parts[0][d / 32][r], parts.high);
          V::store_bits(query_parts[1][d / 32][r], parts.low);
        }
      }
    }
  };
  struct View : Base::View {
    const std::byte* scales[kPieceUnits];
    const std::byte* next_scales[kPieceUnits];  // of the next piece, or null
    Room* room;
  };

  static void set_view(const AttentionTask& t, int piece, const PieceRows& rows, Room& room,
                       PieceBuffers<FoldedFormat>&, View& view) {
    Base::set_view(t, piece, rows, view);
    view.room = &room;
    for (int i = 0; i < view.units; ++i) {
      view.next_scales[i] =
          view.after_v[i] == view.coded_v[i] || view.coded_v[i] == nullptr
              ? nullptr
              : reinterpret_cast<const std::byte*>(view.after_v[i]) + t.scale_offset;
      view.scales[i] = Stored::scales_of(t, piece * kPieceTokens + view.unit[i] * kUnitTokens);
    }
    t.rows > 16 ? sum_middles<true>(t, view) : sum_middles<false>(t, view);
  }

  static V::F scales_at(const std::byte* scales, int index) {
    return V::load_fp16(scales + kScaleBytes * index);
  }
  // Returns the middles of 16 groups of codes, whose scales are `scale`.
  static V::F middles_at(const std::byte* minimums, int index, V::F scale) {
    return V::fma(V::set(kMiddleCode), scale, scales_at(minimums, index));
  }
  // Returns a row's queries for 16 channels from `dim` on, those of all rows one behind the other.
  static const float* queries_of(const AttentionTask& t, int dim) {
    return reinterpret_cast<const float*>(t.q) + std::ptrdiff_t{dim} * t.rows;
  }

  // 32 numbers as sums of two numbers of bf16.
  struct Parts {
    V::I high, low;
  };
  static Parts parts_of(V::F x, V::F y) {
    const auto nearest = [](V::F a, V::F b) {
      return reinterpret_cast<V::I>(_mm512_cvtne2ps_pbh(b, a));
    };
    const auto widened = [](__m256i part) {
      return V::as_float(V::shift_left(_mm512_cvtepu16_epi32(part), 16));
    };
    const V::I high = nearest(x, y);
    return {high, nearest(V::sub(x, widened(_mm512_castsi512_si256(high))),
                          V::sub(y, widened(_mm512_extracti64x4_epi64(high, 1))))};
  }

  // Sums products of queries and middles for all units of a piece.
  template <bool kTwo>
  static void sum_middles(const AttentionTask& t, const View& view) {
    Room& room = *view.room;
    amx_clear<kTwo>();
    for (int d = 0; d < t.padded_dim; d += 32) {
      V::I columns[16];
      for (int i = 0; i < kPieceUnits; ++i) {
        const std::byte* const scales = view.scales[min_int(i, view.units - 1)];
        const std::byte* const minimums = scales + kScaleBytes * t.padded_dim;
        const int next = d + V::kLanes;
        const Parts parts = parts_of(middles_at(minimums, d, scales_at(scales, d)),
                                     middles_at(minimums, next, scales_at(scales, next)));
        columns[i] = parts.high;
        columns[i + kPieceUnits] = parts.low;
      }
      store_columns(columns, room.middle_parts);
      kernels::fence_amx_tile_loads();
      for (const auto& part : room.query_parts) {
        amx_multiply_column<kTwo>(part[d / 32], room.middle_parts[0]);
      }
    }
    amx_store_column<kTwo>(room.unit_sums[0], 2 * kPieceUnits);
  }

  // Stores 16 columns of 16 words.
  static void store_columns(const V::I (&columns)[16], Word (&rows)[16][16]) {
    V::I pairs[16], fours[16];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(columns[i], columns[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(columns[i], columns[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int half = 0; half < 2; ++half) {
        fours[i + 2 * half] = _mm512_unpacklo_epi64(pairs[i + half], pairs[i + 2 + half]);
        fours[i + 2 * half + 1] = _mm512_unpackhi_epi64(pairs[i + half], pairs[i + 2 + half]);
      }
    }
    // Lane l of fours[4 j + i] holds row 4 l + i of columns 4 j to 4 j + 3.
    constexpr int kEven = 0x88, kOdd = 0xdd;
    for (int i = 0; i < 4; ++i) {
      const V::I even[2] = {_mm512_shuffle_i32x4(fours[i], fours[4 + i], kEven),
                            _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], kEven)};
      const V::I odd[2] = {_mm512_shuffle_i32x4(fours[i], fours[4 + i], kOdd),
                           _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], kOdd)};
      V::store_bits(rows[i], _mm512_shuffle_i32x4(even[0], even[1], kEven));
      V::store_bits(rows[4 + i], _mm512_shuffle_i32x4(odd[0], odd[1], kEven));
      V::store_bits(rows[8 + i], _mm512_shuffle_i32x4(even[0], even[1], kOdd));
      V::store_bits(rows[12 + i], _mm512_shuffle_i32x4(odd[0], odd[1], kOdd));
    }
  }

  static void keys(const AttentionTask& t, const View& view, int i) {
    Base::keys(t, view, i);
    Room& room = *view.room;
    auto ahead = kernels::Ahead::over(view.next_scales[i], 8 * t.padded_dim, t.padded_dim / 32);
    for (int d = 0; d < t.padded_dim; d += 32) {
      ahead.ask();
      const V::F low = scales_at(view.scales[i], d);
      const V::F high = scales_at(view.scales[i], d + V::kLanes);
      const float* q = queries_of(t, d);
#pragma GCC unroll 4
      for (int r = 0; r < t.rows; ++r, q += V::kLanes) {
        Pairs::store_bf16(room.queries[d / 32][r], V::mul(V::load(q), low),
                          V::mul(V::load(q + t.rows * V::kLanes), high));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < t.rows; ++r) {
      const float* const sums = room.unit_sums[r] + i;
      V::store(room.first_scores[r], V::set(sums[0] + sums[kPieceUnits]));
    }
    kernels::fence_amx_tile_loads();
  }

  // Begins the scores of a unit with the sums over its middles.
  template <bool kTwo>
  static void begin_scores(const View& view) {
    amx_load_scores<kTwo>(view.room->first_scores[0], V::kLanes);
  }

  static const void* queries(const AttentionTask&, const View& view, int chunk) {
    return view.room->queries[chunk];
  }

  // Multiplies probabilities by the scales of a unit, for one or two groups of channels, and sums
  // their products with its middles.
  static void weigh(const AttentionTask& t, const View& view, const PieceBuffers<FoldedFormat>& b,
                    int i, int dim, int columns) {
    columns == 2 * kGroup ? weigh_groups<2>(t, view, b, i, dim)
                          : weigh_groups<1>(t, view, b, i, dim);
    kernels::fence_amx_tile_loads();
  }

  template <int kGroups>
  static void weigh_groups(const AttentionTask& t, const View& view,
                           const PieceBuffers<FoldedFormat>& b, int i, int dim) {
    V::F scales[kGroups][2], middles[kGroups][2];
    const std::byte* at = view.scales[i] + 2 * kScaleBytes * (t.padded_dim + dim);
    for (int g = 0; g < kGroups; ++g, at += 2 * kScaleBytes * kUnitTokens) {
      for (int half = 0; half < 2; ++half) {
        scales[g][half] = scales_at(at, half * V::kLanes);
        middles[g][half] =
            middles_at(at + kScaleBytes * kUnitTokens, half * V::kLanes, scales[g][half]);
      }
    }
    for (int r = 0; r < t.rows; ++r) {
      const V::F x = V::load(b.probs[i][r]), y = V::load(b.probs[i][r] + V::kLanes);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        float* const sums = view.room->value_sums[dim / kGroup + g][r];
        Pairs::store_bf16(view.room->weights[i % 2][g][r], V::mul(x, scales[g][0]),
                          V::mul(y, scales[g][1]));
        const V::F before = i == 0 ? V::zero() : V::load(sums);
        V::store(sums, V::fma(y, middles[g][1], V::fma(x, middles[g][0], before)));
      }
    }
  }

  // Returns the weights of group `group` of those that weigh() has taken.
  static const void* weights(const View& view, const PieceBuffers<FoldedFormat>&, int i,
                             int group) {
    return view.room->weights[i % 2][group];
  }

  // Adds the sums over middles to the values of a piece.
  static void finish_values(const AttentionTask& t, const View& view, float* out) {
    kernels::fence_amx_tile_loads();
    for (int r = 0; r < t.rows; ++r, out += t.padded_dim) {
      for (int d = 0; d < t.padded_dim; d += kGroup) {
        const V::F sum = V::set(V::reduce_add(V::load(view.room->value_sums[d / kGroup][r])));
        V::store(out + d, V::add(V::load(out + d), sum));
        V::store(out + d + V::kLanes, V::add(V::load(out + d + V::kLanes), sum));
      }
    }
  }
};

}  // namespace
}  // namespace quire::attention
