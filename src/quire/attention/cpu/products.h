// The two products of attention through vector dots: scores = Q K^T and values = P V, R rows by N
// registers of columns side by side. Every sum is one chain in ascending order of the depth (or
// token), so tile shapes do not change bits.
#pragma once

#include <cstdint>

#include "quire/attention/cpu/softmax.h"

namespace quire::attention {
namespace {

template <class V, class E>
struct VectorProducts {
  using Format = E;
  static constexpr int kRegisters = V::kDenseRegisters;
  static constexpr int kColumns = kRegisters * V::kLanes;  // 16 or 32
  static constexpr int kRows = V::kDenseRows;
  static constexpr bool kWholeUnits = false;  // true: whole units of V are multiplied
  static constexpr int kLineWords = 16;       // words of a cache line
  static_assert(kUnitTokens % kColumns == 0);
  // Values of few rows where registers are many: x 4. So there are chains enough to hide the
  // latency of an addition, and a row of V is read four lines at a time.
  static constexpr bool kManyRegisters = V::kLanes == 16;
  static constexpr int kMostFewRows = 8;
  // Rows from which on softmax and values take turns.
  static constexpr int kInterleavedRows =
      kManyRegisters && E::kStoresTwo ? kMostFewRows + 1 : kStripRows + 1;
  static constexpr int kFewRows = 4;  // rows of a small tile
  static constexpr int kFewRegisters = 4;
  static constexpr int kFewColumns = kFewRegisters * V::kLanes;
  // True where registers are few and words are widened. The first tile of rows keeps the columns
  // that it has widened, side by side, and the others take them from there.
  static constexpr bool kKeepsColumns = E::kParts > 1 && V::kFewRegisters && !E::kCodes;
  static_assert(!kKeepsColumns || kColumns <= kKeptColumns);
  // Rows of a tile where there are several, about. x 2 registers are as many chains as hide the
  // latency of a multiply-add. Taller tiles take longer to begin and to end.
  static constexpr int kKeptRows = 4;
  enum class Columns : std::uint8_t { kStored, kStoredAndKept, kKept };

  template <int R, int N>
  struct Sums {
    typename E::Sum acc[R][N];
  };

  template <int R, int N>
  static void clear(Sums<R, N>& sums) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums.acc[r][n] = E::no_sum();
      }
    }
  }

  // Rows of kColumns words, some distance apart. Memory is busy all the time. While a unit of K is
  // multiplied, one of V is asked for row by row. With a unit of V one of K of the next piece is
  // asked for. A unit is 4 KiB somewhere in memory, too short for the hardware to see a stream.
  // Asked for at once it would hold up the loads behind it.
  struct WordRows {
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

  // Adds kParts words of `x` (per row, `x_stride` words apart) times words of the columns, or times
  // their widened copies in `kept`, to `sums`.
  template <Columns kFrom, int R, int N>
  static void add_words(Sums<R, N>& sums, const Word* columns, float* kept, const Word* x,
                        std::ptrdiff_t x_stride) {
#pragma GCC unroll 2
    for (int part = 0; part < E::kParts; ++part) {
      typename E::Operand words[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        float* const widened = kept + part * kColumns + n * V::kLanes;
        if constexpr (kFrom == Columns::kKept) {
          words[n] = V::load(widened);
        } else {
          words[n] = E::load(columns + std::ptrdiff_t{n} * V::kLanes, part);
        }
        words[n] = kernels::in_order<V>(words[n]);
        if constexpr (kFrom == Columns::kStoredAndKept) {
          V::store(widened, words[n]);
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
        V::store(out + r * stride + std::ptrdiff_t{n} * V::kLanes, E::number(sums.acc[r][n]));
      }
    }
  }

  // Tile `index` of `count` that cover all rows.
  struct RowTile {
    int first_row, index, count;
  };

  template <Columns kFrom>
  struct ColumnsFrom {
    static constexpr Columns kValue = kFrom;
  };

  // Calls fn(number of rows, where columns come from, RowTile) for tiles that are all about as
  // high.
  template <class Fn>
  static void for_each_tile(int rows, Fn fn) {
    const int tiles = kKeepsColumns && rows > kRows ? kernels::max_int(2, rows / kKeptRows)
                                                    : (rows + kRows - 1) / kRows;
    for (int i = 0; i < tiles; ++i) {
      const RowTile tile = {rows * i / tiles, i, tiles};
      kernels::with_row_count<kRows>(rows * (i + 1) / tiles - tile.first_row, [&](auto count) {
        if constexpr (kKeepsColumns) {
          if (i > 0) {
            fn(count, ColumnsFrom<Columns::kKept>{}, tile);
            return;
          }
          if (tiles > 1) {
            fn(count, ColumnsFrom<Columns::kStoredAndKept>{}, tile);
            return;
          }
        }
        fn(count, ColumnsFrom<Columns::kStored>{}, tile);
      });
    }
  }

  // Returns the words of a unit that one of `parts` tiles asks for in so many steps. All tiles ask
  // for all of it, evenly and in the order of its addresses.
  static WordRows part_of_unit(const AttentionTask& t, const Word* unit, int part, int parts,
                               int steps) {
    const int words = kUnitTokens / E::kPack * t.padded_dim;
    const int in_all = parts * steps;
    return {unit + std::ptrdiff_t{words} * part / parts, (words + in_all - 1) / in_all};
  }

  struct Nothing {
    void operator()(auto...) const {}
  };

  // Computes b.scores[row][32 * i + token] for all units of the view. Calls fn(first row, sums) for
  // each tile.
  template <class Fn = Nothing>
  static void scores(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b,
                     Fn fn = {}) {
    for (int column = 0; column < view.units * kUnitTokens; column += kColumns) {
      const int i = column / kUnitTokens, in_unit = column % kUnitTokens;
      const WordRows k = {view.k[i] + in_unit, view.k_stride};
      for_each_tile(t.rows, [&](auto rows, auto from, RowTile tile) {
        WordRows ahead = {view.v[i] + in_unit, kUnitTokens};
        if constexpr (kKeepsColumns) {
          ahead = part_of_unit(t, view.v[i], in_unit / kColumns * tile.count + tile.index,
                               kUnitTokens / kColumns * tile.count, t.padded_dim / E::kPack);
        }
        fn(tile.first_row, score_tile<from.kValue, rows.kValue>(t, tile.first_row, k, ahead, b.kept,
                                                                &b.scores[tile.first_row][column]));
      });
    }
  }

  template <Columns kFrom, int R>
  static Sums<R, kRegisters> score_tile(const AttentionTask& t, int row, WordRows k, WordRows ahead,
                                        float* kept, float* out) {
    Sums<R, kRegisters> sums;
    clear(sums);
    const Word* q = reinterpret_cast<const Word*>(t.q) + std::ptrdiff_t{row} * kChunkWords;
    const std::ptrdiff_t q_step = std::ptrdiff_t{t.rows} * kChunkWords;
    const int chunks = t.padded_dim / E::kPack * E::kParts / kChunkWords;
    for (int chunk = 0; chunk < chunks; ++chunk, q += q_step) {
#pragma GCC unroll 2
      for (int word = 0; word < kChunkWords; word += E::kParts) {
        ahead.template prefetch<kRegisters>();
        add_words<kFrom>(sums, k.words, kept, q + word, kChunkWords);
        k.advance();
        ahead.advance();
        kept += E::kParts * kColumns;
      }
    }
    store(sums, out, kPieceTokens);
    return sums;
  }

  // Sets out[row][dim] to the sum over the view's tokens of probs * v. Leaves out words of tokens
  // that no row sees: they would add zeros.
  static void values(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b,
                     float* out) {
    if constexpr (kManyRegisters) {
      if (t.rows <= kMostFewRows && t.padded_dim % kFewColumns == 0) {
        few_values(t, view, b, out);
        return;
      }
    }
    values_from(t, view, b, 0, out);
  }

  // Computes values with columns in the outer loop: a range of V comes from memory once, for later
  // tiles from the first cache.
  static void values_from(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b,
                          int first_dim, float* out) {
    for (int dim = first_dim; dim < t.padded_dim; dim += kColumns) {
      for_each_tile(t.rows, [&](auto rows, auto from, RowTile tile) {
        value_tile<from.kValue, rows.kValue, kRegisters>(t, view, b, {tile, dim, out});
      });
    }
  }

  // Computes scores, softmax and values of a piece that all rows see whole, with the bits of the
  // three one by one. While the first columns of a unit's values are multiplied, the probabilities
  // of the next unit are taken. Half of their work is on pipes that dots leave idle.
  static void interleaved(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b) {
    RowLanes<V> lanes;
    for (int r = 0; r < t.rows; ++r) {
      V::store(lanes.lanes[r], V::set(kLowest));
    }
    scores(t, view, b, [&]<int R, int N>(int row, const Sums<R, N>& sums) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        typename V::F peak = V::load(lanes.lanes[row + r]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          peak = V::max(peak, sums.acc[r][n]);
        }
        V::store(lanes.lanes[row + r], peak);
      }
    });
    for (int r = 0; r < t.rows; ++r) {
      set_maximum<V>(b, r, V::load(lanes.lanes[r]));
      V::store(lanes.lanes[r], V::zero());
    }
    add_probabilities<V, E>(t, b, 0, lanes);
    static_assert(2 * kRows <= kUnitTokens / E::kPack, "a row every other word");
    for_each_tile(t.rows, [&](auto rows, auto from, RowTile tile) {
      constexpr int kTileRows = rows.kValue;
      value_tile<from.kValue, kTileRows, kRegisters>(
          t, view, b, {tile, 0, b.values}, [&](int i, int word) {
            if (word % 2 == 0 && word / 2 < kTileRows && i + 1 < view.units) {
              add_probabilities<V, E, 1>(b, tile.first_row + word / 2, i + 1, lanes);
            }
          });
    });
    values_from(t, view, b, kColumns, b.values);
    for (int r = 0; r < t.rows; ++r) {
      b.sum[r] = V::reduce_add(V::load(lanes.lanes[r]));
    }
  }

  static void few_values(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b,
                         float* out) {
    for (int row = 0, count = 0; row < t.rows; row += count) {
      count = kernels::even_rows<kFewRows>(t.rows - row);
      for (int dim = 0; dim < t.padded_dim; dim += kFewColumns) {
        kernels::with_row_count<kFewRows>(count, [&](auto rows) {
          value_tile<Columns::kStored, rows.kValue, kFewRegisters>(t, view, b,
                                                                   {{row, 0, 1}, dim, out});
        });
      }
    }
  }

  struct ValueTile {
    RowTile rows;
    int first_dim;
    float* out;  // [rows of the strip][padded_dim]
  };

  // Calls beside(unit, word) before each word.
  template <Columns kFrom, int R, int N, class Beside = Nothing>
  static void value_tile(const AttentionTask& t, const PieceView& view, PieceBuffers<E>& b,
                         const ValueTile& tile, Beside beside = {}) {
    const auto [first_row, index, count] = tile.rows;
    const int dim = tile.first_dim;
    constexpr int kRowWords = kUnitTokens / E::kPack * E::kParts;
    Sums<R, N> sums;
    clear(sums);
    float* kept = b.kept;
    for (int i = 0; i < view.units; ++i) {
      WordRows v = {view.v[i] + dim, t.padded_dim};
      WordRows ahead = {view.after_v[i] + dim, t.padded_dim};
      if constexpr (kKeepsColumns) {
        ahead = part_of_unit(t, view.after_v[i], dim / kColumns * count + index,
                             t.padded_dim / kColumns * count, kUnitTokens / E::kPack);
      }
      const Word* probs = reinterpret_cast<const Word*>(b.probs[i][first_row]);
      const int words = view.value_words[i] * E::kParts;
#pragma GCC unroll 2
      for (int word = 0; word < words; word += E::kParts) {
        ahead.template prefetch<N>();
        beside(i, word);
        add_words<kFrom>(sums, v.words, kept, probs + word, kRowWords);
        v.advance();
        ahead.advance();
        kept += E::kParts * kColumns;
      }
      for (int word = words; word < kRowWords; word += E::kParts) {
        ahead.template prefetch<N>();
        ahead.advance();
      }
    }
    store(sums, tile.out + std::ptrdiff_t{first_row} * t.padded_dim + dim, t.padded_dim);
  }
};

}  // namespace
}  // namespace quire::attention
