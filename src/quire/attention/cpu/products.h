// The two products of attention through vector dots: scores = Q K^T and values = P V, R rows by
// kColumns columns side by side. Every sum is one chain in ascending order of the depth (or token),
// so tile shapes do not change bits.
#pragma once

#include "quire/attention/cpu/softmax.h"

namespace quire::attention {
namespace {

template <class V, class E>
struct VectorProducts {
  using Format = E;
  static constexpr int kRegisters = V::kBf16Registers;
  static constexpr int kColumns = kRegisters * V::kLanes;  // 16 or 32
  static constexpr int kRows = V::kBf16Rows;
  static constexpr int kLineWords = 16;  // of a cache line
  static_assert(kUnitTokens % kColumns == 0);

  template <int R>
  struct Sums {
    typename V::F acc[R][kRegisters];
  };

  template <int R>
  static void clear(Sums<R>& sums) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < kRegisters; ++n) {
        sums.acc[r][n] = V::zero();
      }
    }
  }

  // Rows of kColumns words, some distance apart. While one unit is multiplied, the next is asked
  // for row by row: a unit is 4 KiB somewhere in memory, too short for the hardware to see a
  // stream, and asked for at once it would hold up the loads behind it.
  struct Stream {
    const Word* words;
    std::ptrdiff_t stride;  // words
    void advance() { words += stride; }
    void prefetch() const {
#pragma GCC unroll 2
      for (int line = 0; line < kColumns; line += kLineWords) {
        __builtin_prefetch(words + line, 0, 2);  // to the second level
      }
    }
  };

  // sums += word of `x` (one per row, `x_stride` words apart) times words of the columns.
  template <int R>
  static void add_word(Sums<R>& sums, const Word* columns, const Word* x, std::ptrdiff_t x_stride) {
    typename E::Columns words[kRegisters];
#pragma GCC unroll 8
    for (int n = 0; n < kRegisters; ++n) {
      words[n] = E::load(columns + std::ptrdiff_t{n} * V::kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < kRegisters; ++n) {
        sums.acc[r][n] = E::dot(sums.acc[r][n], words[n], x + r * x_stride);
      }
    }
  }

  template <int R>
  static void store(const Sums<R>& sums, float* out, std::ptrdiff_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < kRegisters; ++n) {
        V::store(out + r * stride + std::ptrdiff_t{n} * V::kLanes, sums.acc[r][n]);
      }
    }
  }

  // b.scores[row][32 * i + token] for all units of the view.
  static void scores(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b) {
    for (int column = 0; column < view.units * kUnitTokens; column += kColumns) {
      const int i = column / kUnitTokens, in_unit = column % kUnitTokens;
      const Stream k = {view.k[i] + in_unit, view.k_stride};
      const Stream ahead = i + 1 < view.units ? Stream{view.k[i + 1] + in_unit, view.k_stride}
                                              : Stream{view.v[0] + in_unit, kUnitTokens};
      for (int row = 0; row < t.rows; row += kRows) {
        kernels::with_row_count<kRows>(t.rows - row, [&](auto rows) {
          score_tile<rows.kValue>(t, row, k, ahead, &b.scores[row][column]);
        });
      }
    }
  }

  template <int R>
  static void score_tile(const AttentionTask& t, int row, Stream k, Stream ahead, float* out) {
    Sums<R> sums;
    clear(sums);
    const Word* q = reinterpret_cast<const Word*>(t.q) + std::ptrdiff_t{row} * kChunkWords;
    const std::ptrdiff_t q_step = std::ptrdiff_t{t.rows} * kChunkWords;
    const int chunks = t.padded_dim / E::kPack / kChunkWords;
    for (int chunk = 0; chunk < chunks; ++chunk, q += q_step) {
      for (int word = 0; word < kChunkWords; ++word) {
        ahead.prefetch();
        add_word(sums, k.words, q + word, kChunkWords);
        k.advance();
        ahead.advance();
      }
    }
    store(sums, out, kPieceTokens);
  }

  // out[row][dim] = sum over the view's tokens of probs * v.
  static void values(const AttentionTask& t, const PieceView& view, const PieceBuffers<E>& b,
                     float* out) {
    for (int dim = 0; dim < t.padded_dim; dim += kColumns) {
      for (int row = 0; row < t.rows; row += kRows) {
        float* to = out + std::ptrdiff_t{row} * t.padded_dim + dim;
        kernels::with_row_count<kRows>(
            t.rows - row, [&](auto rows) { value_tile<rows.kValue>(t, view, b, {row, dim}, to); });
      }
    }
  }

  struct Place {
    int row, dim;
  };

  template <int R>
  static void value_tile(const AttentionTask& t, const PieceView& view, const PieceBuffers<E>& b,
                         Place at, float* out) {
    constexpr int kRowWords = kUnitTokens / E::kPack;
    Sums<R> sums;
    clear(sums);
    for (int i = 0; i < view.units; ++i) {
      Stream v = {view.v[i] + at.dim, t.padded_dim};
      Stream ahead = {view.v[min_int(i + 1, view.units - 1)] + at.dim, t.padded_dim};
      const Word* probs = reinterpret_cast<const Word*>(b.probs[i][at.row]);
      for (int word = 0; word < kRowWords; ++word) {
        ahead.prefetch();
        add_word(sums, v.words, probs + word, kRowWords);
        v.advance();
        ahead.advance();
      }
    }
    store(sums, out, t.padded_dim);
  }
};

}  // namespace
}  // namespace quire::attention
