// The two products of int8 codes on AMX tiles, with the bits of VectorProducts. An integer of 16
// bits is two bytes, one signed and one not, and each is multiplied with the codes by itself.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/attend.h"
#include "quire/kernels/cpu/amx_tiles.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"

namespace quire::attention {
namespace {

constexpr int kTileBytes = 64;    // of a row: as many values of the depth
constexpr int kTileColumns = 16;  // words
constexpr int kTileRows = 16;
constexpr int kLow = 0, kHigh = 1;  // bytes

// Rows of integers of 16 bits as bytes: [depth / 64][low, high][row][64], four values in the order
// of their codes.
struct ByteRows {
  alignas(64) std::uint8_t bytes[kMaxHeadDim / kTileBytes][2][kStripRows][kTileBytes];

  // Puts 32 integers to places [place, place + 32) of a row, eight in each quarter of x. Words of
  // four low bytes of a quarter and words of high ones lie one after the other then, and `order` is
  // what brings all low ones to the front.
  void put(int row, int place, __m512i x, __m512i order) {
    const __m512i split =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15));
    const __m512i ordered = _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(x, split));
    auto& chunk = bytes[place / kTileBytes];
    const int at = place % kTileBytes;
    _mm256_store_si256(reinterpret_cast<__m256i*>(chunk[kLow][row] + at),
                       _mm512_castsi512_si256(ordered));
    _mm256_store_si256(reinterpret_cast<__m256i*>(chunk[kHigh][row] + at),
                       _mm512_extracti64x4_epi64(ordered, 1));
  }
  // 32 in order.
  void put(int row, int place, __m512i x) {
    put(row, place, x, _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  }
  // 16 integers of 32 bits, and 16 behind them.
  void put_both(int row, int place, __m512i x, __m512i y) {
    put(row, place, _mm512_packs_epi32(x, y),
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  }
};

// Int8 with weights as bytes.
struct Int8Tiles : Int8<kernels::VecAvx512> {
  static constexpr int kWeightUnits = kTileBytes / kUnitTokens;

  static void store_weights(PieceBuffers<Int8Tiles>& b, int row, int unit, const float* numbers,
                            float factor) {
    static_assert(sizeof b.probs == sizeof(ByteRows));
    const __m512 by = _mm512_set1_ps(factor);
    reinterpret_cast<ByteRows*>(b.probs)->put_both(
        row, unit * kUnitTokens, _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(numbers), by)),
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(numbers + 16), by)));
  }
};

struct AmxCodeProducts {
  using V = kernels::VecAvx512;
  using Format = Int8Tiles;
  using Buffers = PieceBuffers<Format>;
  static constexpr bool kWholeUnits = true;
  static constexpr bool kScalesScores = true;
  // Up to so many rows a unit of V is multiplied where it lies. It fills half a tile, which costs
  // nothing while rows are few. For more rows two units are copied together.
  static constexpr int kFewRows = 8;
  static constexpr int kUnitWords = kUnitTokens / 4;  // of a column of V

  // Tiles 0, 1: sums of low and high bytes of the first 16 rows; 2, 3 of the others. 4: left
  // operands; 5 of the others, or of single units; 6: right operands; 7: of single units.
  static kernels::AmxTileShapes shapes(int rows) {
    const bool few = rows <= kFewRows;
    const int first = min_int(kTileRows, rows), second = max_int(1, rows - kTileRows);
    kernels::AmxTileShapes s;
    for (const int tile : {0, 1, 4}) {
      s.set(tile, first, kTileBytes);
    }
    for (const int tile : {2, 3}) {
      s.set(tile, second, kTileBytes);
    }
    s.set(5, few ? first : second, few ? kUnitTokens : kTileBytes);
    s.set(6, kTileRows, kTileBytes);
    s.set(7, kUnitWords, kTileBytes);
    return s;
  }

  template <bool kTwo>
  static void clear() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }

  // `left`: a chunk of ByteRows.
  template <bool kTwo>
  static void multiply(const std::uint8_t (&left)[2][kStripRows][kTileBytes], const Word* right,
                       std::ptrdiff_t right_stride_words) {
    _tile_loadd(6, right, right_stride_words * kWordBytes);
    _tile_loadd(4, left[kLow][0], kTileBytes);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(4, left[kHigh][0], kTileBytes);
    _tile_dpbssd(1, 4, 6);
    if constexpr (kTwo) {
      _tile_loadd(5, left[kLow][kTileRows], kTileBytes);
      _tile_dpbusd(2, 5, 6);
      _tile_loadd(5, left[kHigh][kTileRows], kTileBytes);
      _tile_dpbssd(3, 5, 6);
    }
  }

  // Sums of low and high bytes -> numbers, 16 columns of all rows. Calls fn(row, numbers).
  template <bool kTwo, class Fn>
  static void take(int rows, Fn fn) {
    alignas(64) std::int32_t sums[2][kStripRows][kTileColumns];
    _tile_stored(0, sums[kLow][0], kTileBytes);
    _tile_stored(1, sums[kHigh][0], kTileBytes);
    if constexpr (kTwo) {
      _tile_stored(2, sums[kLow][kTileRows], kTileBytes);
      _tile_stored(3, sums[kHigh][kTileRows], kTileBytes);
    }
    kernels::fence_amx_tile_loads();
    for (int r = 0; r < rows; ++r) {
      const __m512i high = _mm512_slli_epi32(_mm512_load_si512(sums[kHigh][r]), 8);
      fn(r, V::to_float(V::add_bits(high, _mm512_load_si512(sums[kLow][r]))));
    }
  }

  static void scores(const AttentionTask& t, const PieceView& view, Buffers& b) {
    t.rows > kTileRows ? scores_of<true>(t, view, b) : scores_of<false>(t, view, b);
  }

  template <bool kTwo>
  static void scores_of(const AttentionTask& t, const PieceView& view, Buffers& b) {
    ByteRows queries;  // NOLINT: filled by the next line
    split_queries(t, queries);
    kernels::fence_amx_tile_loads();
    for (int i = 0; i < view.units; ++i) {
      for (int token = 0; token < kUnitTokens; token += kTileColumns) {
        ask_for_values(t, view.v[i], token);
        clear<kTwo>();
        const Word* k = view.k[i] + token;
        for (int chunk = 0; chunk * kTileBytes < t.padded_dim; ++chunk) {
          multiply<kTwo>(queries.bytes[chunk], k, view.k_stride);
          k += kTileRows * view.k_stride;
        }
        const int column = i * kUnitTokens + token;
        const V::F scales = V::load(b.key_scales + column);
        take<kTwo>(t.rows, [&](int row, V::F sums) {  // as scale_scores does it
          V::store(&b.scores[row][column], V::mul(V::mul(sums, scales), V::set(t.q_scales[row])));
        });
      }
    }
  }

  // Asks for a half of a unit of V, so that memory is busy while K is multiplied.
  static void ask_for_values(const AttentionTask& t, const Word* unit, int token) {
    const int half = kUnitWords * t.padded_dim / 2;
    const Word* const from = unit + (token == 0 ? 0 : half);
    for (int word = 0; word < half; word += kTileColumns) {
      __builtin_prefetch(from + word, 0, 2);
    }
  }

  // Behind padded_dim the last chunk is zeros: the words of K that they meet are others.
  static void split_queries(const AttentionTask& t, ByteRows& out) {
    constexpr int kChunkValues = kChunkWords * 2;
    for (int chunk = 0; chunk * kChunkValues < t.padded_dim; ++chunk) {
      for (int r = 0; r < t.rows; ++r) {
        const std::byte* from =
            t.q + (std::ptrdiff_t{chunk} * t.rows + r) * kChunkWords * kWordBytes;
        out.put(r, chunk * kChunkValues, _mm512_loadu_si512(from));
      }
    }
    if (t.padded_dim % kTileBytes != 0) {
      for (int r = 0; r < t.rows; ++r) {
        out.put(r, t.padded_dim, _mm512_setzero_si512());
      }
    }
  }

  static void values(const AttentionTask& t, PieceView& view, Buffers& b, float* out) {
    if (t.rows <= kFewRows) {
      few_values(t, view, b, out);
    } else {
      t.rows > kTileRows ? values_of<true>(t, view, b, out) : values_of<false>(t, view, b, out);
    }
  }

  static void few_values(const AttentionTask& t, const PieceView& view, Buffers& b, float* out) {
    const auto& weights = *reinterpret_cast<const ByteRows*>(b.probs);
    kernels::fence_amx_tile_loads();
    for (int dim = 0; dim < t.padded_dim; dim += kTileColumns) {
      clear<false>();
      for (int i = 0; i < view.units; ++i) {
        const auto& left = weights.bytes[i / 2];
        const int at = i % 2 * kUnitTokens;
        for (int word = dim; word < dim + kTileColumns; word += kTileColumns / kUnitWords) {
          __builtin_prefetch(view.after_v[i] + word * kUnitWords, 0, 2);
        }
        _tile_loadd(7, view.v[i] + dim, std::ptrdiff_t{t.padded_dim} * kWordBytes);
        _tile_loadd(5, left[kLow][0] + at, kTileBytes);
        _tile_dpbusd(0, 5, 7);
        _tile_loadd(5, left[kHigh][0] + at, kTileBytes);
        _tile_dpbssd(1, 5, 7);
      }
      take<false>(t.rows,
                  [&](int row, V::F sums) { V::store(out + row * t.padded_dim + dim, sums); });
    }
  }

  template <bool kTwo>
  static void values_of(const AttentionTask& t, PieceView& view, Buffers& b, float* out) {
    const auto& weights = *reinterpret_cast<const ByteRows*>(b.probs);
    const Word* const pairs = units_together(t, view);
    const std::ptrdiff_t pair_words = std::ptrdiff_t{2} * kUnitWords * t.padded_dim;
    kernels::fence_amx_tile_loads();
    for (int dim = 0; dim < t.padded_dim; dim += kTileColumns) {
      clear<kTwo>();
      for (int pair = 0; 2 * pair < view.units; ++pair) {
        multiply<kTwo>(weights.bytes[pair], pairs + pair * pair_words + dim, t.padded_dim);
      }
      take<kTwo>(t.rows,
                 [&](int row, V::F sums) { V::store(out + row * t.padded_dim + dim, sums); });
    }
  }

  // Units of V one behind the other: where they were gathered, or copied there.
  static const Word* units_together(const AttentionTask& t, const PieceView& view) {
    const std::ptrdiff_t unit_words = std::ptrdiff_t{kUnitWords} * t.padded_dim;
    Word* const out = reinterpret_cast<Word*>(t.scratch) + kPieceUnits * unit_words;
    if (t.block_tokens % kUnitTokens == 0) {
      for (int i = 0; i < view.units; ++i) {
        for (std::ptrdiff_t word = 0; word < unit_words; word += V::kLanes) {
          V::store_bits(out + i * unit_words + word, V::load_bits(view.v[i] + word));
        }
      }
    }
    return out;
  }
};

void amx_attend_int8(const AttentionTask& t) {
  const kernels::AmxTileShapes shapes = AmxCodeProducts::shapes(t.rows);
  const kernels::AmxTileGuard guard(shapes);
  attend<AmxCodeProducts::V, AmxCodeProducts>(t);
}

}  // namespace
}  // namespace quire::attention
