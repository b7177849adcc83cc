// The two products of attention through vector dots: scores = Q K^T and values = P V, R rows by N
// registers of columns side by side. Every sum is one chain in ascending order of the depth (or
// token), so tile shapes do not change bits.
#pragma once

#include "quire/attention/cpu/softmax.h"

namespace quire::attention {
namespace {

template <class V, class E>
struct VectorProducts {
  using Format = E;
  static constexpr int kRegisters = V::kDenseRegisters;
  static constexpr int kColumns = kRegisters * V::kLanes;  // 16 or 32
  static constexpr int kRows = V::kDenseRows;
  static constexpr bool kWholeUnits = false;  // of V are multiplied
  static constexpr int kLineWords = 16;       // of a cache line
  static_assert(kUnitTokens % kColumns == 0);
  // Where words are widened and registers are many: few rows x 4, so that there are chains enough
  // to hide the latency of an addition.
  static constexpr bool kShapes = E::kParts > 1 && V::kLanes == 16;
  static constexpr int kFewRows = 4;
  static constexpr int kFewRegisters = 4;
  // Up to so many rows of values are taken as few: all, where words need no widening, because a row
  // of V is then read in whole stretches of four lines.
  static constexpr int kMostFewRows = kShapes ? kFewRows : V::kLanes == 16 ? kTileRows : 0;

  template <int R, int N>
  struct Sums {
    typename V::F acc[R][N];
  };

  template <int R, int N>
  static void clear(Sums<R, N>& sums) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums.acc[r][n] = V::zero();
      }
    }
  }

  // Rows of kColumns words, some distance apart. While a unit of K is multiplied, one of V is asked
  // for row by row, and with a unit of V one of K of the next piece, so that memory is busy all the
  // time: a unit is 4 KiB somewhere in memory, too short for the hardware to see a stream, and
  // asked for at once it would hold up the loads behind it.
  struct Stream {
    const Word* words;
    std::ptrdiff_t stride;  // words
    void advance() { words += stride; }
    template <int N>
    void prefetch() const {
#pragma GCC unroll 4
      for (int line = 0; line < N * V::kLanes; line += kLineWords) {
        __builtin_prefetch(words + line, 0, 2);  // to the second level
      }
    }
  };

  // sums += kParts words of `x` (per row, `x_stride` words apart) times words of the columns.
  template <int R, int N>
  static void add_words(Sums<R, N>& sums, const Word* columns, const Word* x,
                        std::ptrdiff_t x_stride) {
#pragma GCC unroll 2
    for (int part = 0; part < E::kParts; ++part) {
      typename E::Operand words[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        words[n] = E::load(columns + std::ptrdiff_t{n} * V::kLanes, part);
        if constexpr (V::kFewRegisters) {
          words[n] = kernels::unknown(words[n]);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename E::Operand value = E::input(x + r * x_stride + part);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sums.acc[r][n] = E::multiply_add(sums.acc[r][n], words[n], value);
        }
      }
    }
  }

  template <int R, int N>
  static void store(const Sums<R, N>& sums, float* out, std::ptrdiff_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        V::store(out + r * stride + std::ptrdiff_t{n} * V::kLanes, sums.acc[r][n]);
      }
    }
  }

  // b.scores[row][32 * i + token] for all units of the view.
  static void scores(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b) {
    for (int column = 0; column < view.units * kUnitTokens; column += kColumns) {
      for (int row = 0, count = 0; row < t.rows; row += count) {
        count = kernels::even_rows<kRows>(t.rows - row);
        score_rows<kRegisters>(t, view, {row, column}, count, b);
      }
    }
  }

  struct Place {
    int row, column;
  };
  struct Rows {
    int first, count;
  };

  template <int N>
  static void score_rows(const AttentionTask& t, const PieceView& view, Place at, int count,
                         PieceBuffers<E>& b) {
    const int i = at.column / kUnitTokens, in_unit = at.column % kUnitTokens;
    const Stream k = {view.k[i] + in_unit, view.k_stride};
    const Stream ahead = {view.v[i] + in_unit, kUnitTokens};
    kernels::with_row_count<kRows>(count, [&](auto rows) {
      score_tile<rows.kValue, N>(t, at.row, k, ahead, &b.scores[at.row][at.column]);
    });
  }

  template <int R, int N>
  static void score_tile(const AttentionTask& t, int row, Stream k, Stream ahead, float* out) {
    Sums<R, N> sums;
    clear(sums);
    const Word* q = reinterpret_cast<const Word*>(t.q) + std::ptrdiff_t{row} * kChunkWords;
    const std::ptrdiff_t q_step = std::ptrdiff_t{t.rows} * kChunkWords;
    const int chunks = t.padded_dim / E::kPack * E::kParts / kChunkWords;
    for (int chunk = 0; chunk < chunks; ++chunk, q += q_step) {
      for (int word = 0; word < kChunkWords; word += E::kParts) {
        ahead.template prefetch<N>();
        add_words(sums, k.words, q + word, kChunkWords);
        k.advance();
        ahead.advance();
      }
    }
    store(sums, out, kPieceTokens);
  }

  // out[row][dim] = sum over the view's tokens of probs * v. Words of tokens that no row sees are
  // left out: they would add zeros.
  static void values(const AttentionTask& t, const PieceView& view, const PieceBuffers<E>& b,
                     float* out) {
    for (int row = 0, count = 0; row < t.rows; row += count) {
      const int left = t.rows - row;
      if (left <= kMostFewRows && t.padded_dim % (kFewRegisters * V::kLanes) == 0) {
        count = kernels::even_rows<kFewRows>(left);
        value_rows<kFewRows, kFewRegisters>(t, view, b, {row, count}, out);
      } else {
        count = kernels::even_rows<kRows>(left);
        value_rows<kRows, kRegisters>(t, view, b, {row, count}, out);
      }
    }
  }

  template <int MaxRows, int N>
  static void value_rows(const AttentionTask& t, const PieceView& view, const PieceBuffers<E>& b,
                         Rows of, float* out) {
    for (int dim = 0; dim < t.padded_dim; dim += N * V::kLanes) {
      float* to = out + std::ptrdiff_t{of.first} * t.padded_dim + dim;
      kernels::with_row_count<MaxRows>(of.count, [&](auto rows) {
        value_tile<rows.kValue, N>(t, view, b, {of.first, dim}, to);
      });
    }
  }

  template <int R, int N>
  static void value_tile(const AttentionTask& t, const PieceView& view, const PieceBuffers<E>& b,
                         Place at, float* out) {
    constexpr int kRowWords = kUnitTokens / E::kPack * E::kParts;
    Sums<R, N> sums;
    clear(sums);
    for (int i = 0; i < view.units; ++i) {
      Stream v = {view.v[i] + at.column, t.padded_dim};
      Stream ahead = {view.after_v[i] + at.column, t.padded_dim};
      const Word* probs = reinterpret_cast<const Word*>(b.probs[i][at.row]);
      const int words = view.value_words[i] * E::kParts;
      for (int word = 0; word < words; word += E::kParts) {
        ahead.template prefetch<N>();
        add_words(sums, v.words, probs + word, kRowWords);
        v.advance();
        ahead.advance();
      }
      for (int word = words; word < kRowWords; word += E::kParts) {
        ahead.template prefetch<N>();
        ahead.advance();
      }
    }
    store(sums, out, t.padded_dim);
  }
};

}  // namespace
}  // namespace quire::attention
