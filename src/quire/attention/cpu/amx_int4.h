// int4 on AMX tiles. A unit is a run of K: within it a channel has one scale s and one minimum m.
// A code c is widened to c - 7.5, and m + 7.5 s is what is left. So
//   score = sum (q s) (c - 7.5) + sum q (m + 7.5 s)       over channels
//   value = sum (p s) (c - 7.5) + sum p (m + 7.5 s)       over tokens, for a group of channels
// Queries times scales and probabilities times scales are rounded to bf16, once for each unit and
// row. The sums on the right are fp32. Each row's queries come in fp32.
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

  // The left operands of a strip, and its sums of minimums.
  struct Room {
    alignas(64) std::uint16_t queries[kChunks][kStripRows][32];    // of one unit
    alignas(64) std::uint32_t key_offsets[kStripRows][V::kLanes];  // of one unit, as bf16 pairs
    alignas(64) std::uint16_t weights[kChunks][kPieceUnits][kStripRows][kUnitTokens];
    alignas(64) float value_offsets[kChunks][kStripRows][V::kLanes];
  };
  struct View : Base::View {
    const std::byte* scales[kPieceUnits];
    Room* room;
  };

  static void set_view(const AttentionTask& t, int piece, const PieceRows& rows, Room& room,
                       PieceBuffers<FoldedFormat>&, View& view) {
    Base::set_view(t, piece, rows, view);
    view.room = &room;
    for (int i = 0; i < view.units; ++i) {
      view.scales[i] = Stored::scales_of(t, piece * kPieceTokens + view.unit[i] * kUnitTokens);
    }
  }

  static V::F scales_at(const std::byte* scales, int index) {
    return V::load_fp16(scales + kScaleBytes * index);
  }
  // Returns the middles of 16 groups of codes, whose scales are `scale`.
  static V::F middles_at(const std::byte* minimums, int index, V::F scale) {
    return V::fma(V::set(kMiddleCode), scale, scales_at(minimums, index));
  }

  static void keys(const AttentionTask& t, const View& view, int i) {
    Base::keys(t, view, i);
    fold_queries(t, view.scales[i], *view.room);
    kernels::fence_amx_tile_loads();
  }

  // Multiplies queries by the scales of a unit, and sums their products with its middles.
  static void fold_queries(const AttentionTask& t, const std::byte* scales, Room& room) {
    const std::byte* const minimums = scales + kScaleBytes * t.padded_dim;
    V::F sums[kStripRows];
    for (int r = 0; r < t.rows; ++r) {
      sums[r] = V::zero();
    }
    const float* q = reinterpret_cast<const float*>(t.q);
    const std::ptrdiff_t chunk_step = std::ptrdiff_t{t.rows} * V::kLanes;
    for (int d = 0; d < t.padded_dim; d += 32, q += 2 * chunk_step) {
      const V::F low = scales_at(scales, d), high = scales_at(scales, d + V::kLanes);
      const V::F low_middle = middles_at(minimums, d, low);
      const V::F high_middle = middles_at(minimums, d + V::kLanes, high);
      for (int r = 0; r < t.rows; ++r) {
        const V::F x = V::load(q + r * V::kLanes), y = V::load(q + chunk_step + r * V::kLanes);
        Pairs::store_bf16(room.queries[d / 32][r], V::mul(x, low), V::mul(y, high));
        sums[r] = V::fma(y, high_middle, V::fma(x, low_middle, sums[r]));
      }
    }
    for (int r = 0; r < t.rows; ++r) {
      V::store_bits(room.key_offsets[r], as_pairs(sums[r]));
    }
  }

  // Returns each number as two of bf16 that add up to it, but for its last 8 bits.
  static V::I as_pairs(V::F x) {
    constexpr int kSelect = 0xca;  // a ? b : c
    const V::I bits = V::as_bits(x), upper = V::set_bits(-65536);
    const V::F rest = V::sub(x, V::as_float(V::and_bits(bits, upper)));
    return _mm512_ternarylogic_epi32(upper, bits, V::shift_right(V::as_bits(rest), 16), kSelect);
  }

  static const void* queries(const AttentionTask&, const View& view, int chunk) {
    return view.room->queries[chunk];
  }

  // Adds the sums over middles to the scores of a unit, in both tiles.
  template <bool kTwo>
  static void add_offsets(const View& view) {
    struct Ones {
      alignas(64) std::uint16_t ones[2 * kUnitTokens];
      constexpr Ones() : ones() {
        for (std::uint16_t& one : ones) {
          one = 0x3f80;
        }
      }
    };
    static constexpr Ones kOnes;
    amx_multiply<kTwo>(view.room->key_offsets, reinterpret_cast<const Word*>(kOnes.ones), 0);
  }

  // Multiplies probabilities by the scales of a unit, group by group, and sums their products with
  // its middles.
  static void weigh(const AttentionTask& t, const View& view, const PieceBuffers<FoldedFormat>& b,
                    int i) {
    const std::byte* scales = view.scales[i] + 2 * kScaleBytes * t.padded_dim;
    for (int d = 0; d < t.padded_dim; d += kGroup, scales += 2 * kScaleBytes * kUnitTokens) {
      const std::byte* const minimums = scales + kScaleBytes * kUnitTokens;
      const V::F low = scales_at(scales, 0), high = scales_at(scales, V::kLanes);
      const V::F low_middle = middles_at(minimums, 0, low);
      const V::F high_middle = middles_at(minimums, V::kLanes, high);
      for (int r = 0; r < t.rows; ++r) {
        const V::F x = V::load(b.probs[i][r]), y = V::load(b.probs[i][r] + V::kLanes);
        float* const sums = view.room->value_offsets[d / kGroup][r];
        Pairs::store_bf16(view.room->weights[d / kGroup][i][r], V::mul(x, low), V::mul(y, high));
        const V::F before = i == 0 ? V::zero() : V::load(sums);
        V::store(sums, V::fma(y, high_middle, V::fma(x, low_middle, before)));
      }
    }
    kernels::fence_amx_tile_loads();
  }

  static const void* weights(const View& view, const PieceBuffers<FoldedFormat>&, int i, int dim) {
    return view.room->weights[dim / kGroup][i];
  }

  // Adds the sums over middles to the values of a piece.
  static void finish_values(const AttentionTask& t, const View& view, float* out) {
    kernels::fence_amx_tile_loads();
    for (int r = 0; r < t.rows; ++r, out += t.padded_dim) {
      for (int d = 0; d < t.padded_dim; d += kGroup) {
        const V::F sum = V::set(V::reduce_add(V::load(view.room->value_offsets[d / kGroup][r])));
        V::store(out + d, V::add(V::load(out + d), sum));
        V::store(out + d + V::kLanes, V::add(V::load(out + d + V::kLanes), sum));
      }
    }
  }
};

}  // namespace
}  // namespace quire::attention
