// From scores of one piece to probabilities, their maximum and their sum; and the merge of a piece
// into the running state. Softmax is taken against the piece's own maximum (no running rescale
// inside a piece), states merge as in Milakov & Gimelshein 2018.
#pragma once

#include "quire/attention/cpu/piece.h"

namespace quire::attention {
namespace {

constexpr int kKeptColumns = 16;  // columns of K or V that are kept side by side
// Columns of K have a number for each dimension, those of V one for each token.
constexpr int kKeptRows = kernels::max_int(kPieceTokens, kMaxHeadDim);

template <class E>
struct PieceBuffers {
  alignas(64) float scores[kStripRows][kPieceTokens];
  alignas(64) typename E::Element probs[kPieceUnits][kStripRows][kUnitTokens];
  alignas(64) float values[kStripRows * kMaxHeadDim];  // [rows][padded_dim]
  alignas(64) float spare[kStripRows * kMaxHeadDim];
  alignas(64) float kept[kKeptRows * kKeptColumns];  // columns, widened
  alignas(64) float key_scales[kPieceTokens];        // of codes: of the view's columns
  alignas(64) float value_scales[kPieceTokens];
  float max[kStripRows];
  float sum[kStripRows];
  float weight_scales[kStripRows];  // of codes: what a unit of probs stands for
};

// Takes lanes of columns [i, i + kLanes) outside `seen` from `other`.
template <class V>
typename V::F keep_seen(typename V::F x, int i, TokenRange seen, typename V::F other) {
  return V::keep_first(other, seen.begin - i, V::keep_first(x, seen.end - i, other));
}

// Sets a row's maximum from the largest scores of the row in each lane.
template <class V, class E>
void set_maximum(PieceBuffers<E>& b, int row, typename V::F peak) {
  const float max = V::reduce_max(peak);
  b.max[row] = max > kLowest ? max : kNan;  // -inf is kept for rows that see nothing
}

// Returns a score as softmax takes it.
template <class V, class E>
typename V::F score_at(const PieceBuffers<E>& b, int row, int i) {
  const typename V::F score = V::load(&b.scores[row][i]);
  if constexpr (E::kScaled) {
    return V::mul(score, V::load(b.key_scales + i));
  } else {
    return score;
  }
}

// Caps the scores of all columns, where they are capped at all. Those that a row does not see are
// masked later. Scales are in the capped scores.
template <class V, class View, class E>
void cap_scores(const AttentionTask& t, const View& view, PieceBuffers<E>& b) {
  if (t.soft_cap == 0) {
    return;
  }
  const typename V::F cap = V::set(t.soft_cap), step = V::set(-2.0f / t.soft_cap);
  const int columns = view.units * kUnitTokens;
  for (int row = 0; row < t.rows; ++row) {
    for (int i = 0; i < columns; i += V::kLanes) {
      V::store(&b.scores[row][i], kernels::soft_capped<V>(score_at<V>(b, row, i), cap, step));
    }
  }
  for (int i = 0; E::kScaled && i < columns; i += V::kLanes) {
    V::store(b.key_scales + i, V::set(1.0f));
  }
}

// Returns a score in column i less the maximum of its row. reference_of made `max` of the maximum.
template <class V, class E>
typename V::F below_maximum(const PieceBuffers<E>& b, const float* score, int i,
                            typename V::F max) {
  if constexpr (E::kScaled) {
    return V::fma(V::load(score), V::load(b.key_scales + i), max);
  } else {
    return V::sub(V::load(score), max);
  }
}
template <class V, class E>
typename V::F reference_of(float max) {
  return V::set(E::kScaled ? -max : max);
}

// Returns the factor of the value in column i.
template <class V, class E>
typename V::F weight_of(const PieceBuffers<E>& b, int i, typename V::F p) {
  if constexpr (E::kScaled) {
    return V::mul(p, V::load(b.value_scales + i));
  } else {
    return p;
  }
}

// Finds the maxima of R rows at once: one row alone would wait for each operation.
template <class V, class E, int R>
void row_maxima(PieceBuffers<E>& b, int row, TokenRange seen) {
  typename V::F peak[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    peak[r] = V::set(kLowest);
  }
  for (int i = seen.begin / V::kLanes * V::kLanes; i < seen.end; i += V::kLanes) {
    const bool whole = seen.begin <= i && i + V::kLanes <= seen.end;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      typename V::F x = score_at<V>(b, row + r, i);
      if (!whole) {
        x = keep_seen<V>(x, i, seen, V::set(kLowest));
      }
      peak[r] = V::max(peak[r], x);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    set_maximum<V>(b, row + r, peak[r]);
  }
}

// Rows that see the same, on their way from scores to probabilities.
template <class V, int R>
struct RowSums {
  typename V::F max[R];
  typename V::F sums[R];
};

template <class V, class E>
constexpr int kStoredLanes = E::kStoresTwo ? 2 * V::kLanes : V::kLanes;

// Computes probabilities in columns [i, i + kStoredLanes) of R rows that see them all, and adds
// them to their sums.
template <class V, class E, int R>
[[gnu::always_inline]] inline void exponentials(PieceBuffers<E>& b, int row, int i,
                                                RowSums<V, R>& rows) {
  const float* from = &b.scores[row][i];
  typename E::Element* to = b.probs[i / kUnitTokens][row] + i % kUnitTokens;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r, from += kPieceTokens, to += kUnitTokens) {
    const auto exponential = [&](int lane) {
      const typename V::F p = E::exp2(below_maximum<V>(b, from + lane, i + lane, rows.max[r]));
      rows.sums[r] = V::add(rows.sums[r], p);
      return weight_of<V>(b, i + lane, p);
    };
    const typename V::F first = exponential(0);
    if constexpr (E::kStoresTwo) {
      E::store(to, first, exponential(V::kLanes));
    } else {
      E::store(to, first);
    }
  }
}

// Computes exponentials() of kLanes columns that the rows do not all see. Those that are hidden
// become exact zeros.
template <class V, class E, int R>
void seen_exponentials(PieceBuffers<E>& b, int row, int i, TokenRange seen, RowSums<V, R>& rows) {
  const bool some = seen.begin < i + V::kLanes && i < seen.end;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    typename V::F weight = V::zero();
    if (some) {
      const typename V::F p = E::exp2(below_maximum<V>(b, &b.scores[row + r][i], i, rows.max[r]));
      rows.sums[r] = V::add(rows.sums[r], keep_seen<V>(p, i, seen, V::zero()));
      weight = keep_seen<V>(weight_of<V>(b, i, p), i, seen, V::zero());
    }
    E::store(b.probs[i / kUnitTokens][row + r] + i % kUnitTokens, weight);
  }
}

// Turns scores of rows [row, row + R) into probabilities, maximum and sum. All R rows see columns
// `seen`. A lane sums its tokens in ascending order, so the bits do not depend on how many columns
// there are.
template <class V, class E, int R>
void softmax_rows(PieceBuffers<E>& b, int row, TokenRange seen, int columns) {
  constexpr int kStep = kStoredLanes<V, E>;
  static_assert(kUnitTokens % kStep == 0);
  row_maxima<V, E, R>(b, row, seen);
  RowSums<V, R> rows;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    rows.max[r] = reference_of<V, E>(b.max[row + r]);
    rows.sums[r] = V::zero();
  }
  for (int i = 0; i < columns; i += kStep) {
    if (seen.begin <= i && i + kStep <= seen.end) {
      exponentials<V, E, R>(b, row, i, rows);
      continue;
    }
    for (int part = i; part < i + kStep; part += V::kLanes) {
      seen_exponentials<V, E, R>(b, row, part, seen, rows);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    b.sum[row + r] = V::reduce_add(rows.sums[r]);
  }
}

// Calls fn(number of rows, first row) for all rows, four at a time and then one by one.
template <class Fn>
void for_each_four(int rows, Fn fn) {
  int row = 0;
  for (; row + 4 <= rows; row += 4) {
    fn(kernels::RowCount<4>{}, row);
  }
  for (; row < rows; ++row) {
    fn(kernels::RowCount<1>{}, row);
  }
}

// Holds the largest score of each row and lane, later the sum of probabilities. The softmax keeps
// them while a piece that all rows see whole is computed unit by unit, with the bits of
// softmax_rows.
template <class V>
struct RowLanes {
  alignas(64) float lanes[kStripRows][V::kLanes];
};

// Turns scores of unit i of R rows into probabilities, and adds them to their sums.
template <class V, class E, int R>
[[gnu::always_inline]] inline void add_probabilities(PieceBuffers<E>& b, int row, int i,
                                                     RowLanes<V>& lanes) {
  RowSums<V, R> rows;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    rows.max[r] = reference_of<V, E>(b.max[row + r]);
    rows.sums[r] = V::load(lanes.lanes[row + r]);
  }
  exponentials<V, E, R>(b, row, i * kUnitTokens, rows);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    V::store(lanes.lanes[row + r], rows.sums[r]);
  }
}

// Adds the probabilities of all rows.
template <class V, class E>
void add_probabilities(const AttentionTask& t, PieceBuffers<E>& b, int i, RowLanes<V>& lanes) {
  for_each_four(
      t.rows, [&](auto rows, int row) { add_probabilities<V, E, rows.kValue>(b, row, i, lanes); });
}

template <class E>
void clear_row(PieceBuffers<E>& b, int row, int units) {
  b.max[row] = kLowest;
  b.sum[row] = 0;
  for (int unit = 0; unit < units; ++unit) {
    for (int token = 0; token < kUnitTokens; ++token) {
      b.probs[unit][row][token] = 0;
    }
  }
}

// Returns where tokens `seen` of the piece lie among the view's columns. Units that a row sees are
// neighbours there too.
inline TokenRange columns_of(const PieceView& view, TokenRange seen) {
  if (seen.begin == seen.end) {
    return {};
  }
  const int unit = seen.begin / kUnitTokens;
  const int shift = (unit - view.place[unit]) * kUnitTokens;
  return {seen.begin - shift, seen.end - shift};
}

inline bool same_range(TokenRange a, TokenRange b) { return a.begin == b.begin && a.end == b.end; }

// Calls fn(number of rows, first row, what they see) for every row of the strip that sees
// something, and clear(row) for the others. Rows that see the same as their neighbours go four by
// four.
template <class Fn, class Clear>
void for_each_four(const AttentionTask& t, const PieceRows& rows, const PieceView& view, Fn fn,
                   Clear clear) {
  for (int row = 0; row < t.rows;) {
    const TokenRange seen = columns_of(view, rows.seen[row]);
    if (seen.begin == seen.end) {
      clear(row);
      ++row;
      continue;
    }
    int same = 1;
    while (same < 4 && row + same < t.rows && same_range(rows.seen[row], rows.seen[row + same])) {
      ++same;
    }
    if (same == 4) {
      fn(kernels::RowCount<4>{}, row, seen);
      row += 4;
    } else {
      fn(kernels::RowCount<1>{}, row, seen);
      ++row;
    }
  }
}

// Computes the softmax of every row of the strip.
template <class V, class E>
void softmax_strip(const AttentionTask& t, const PieceRows& rows, const PieceView& view,
                   PieceBuffers<E>& b) {
  for_each_four(
      t, rows, view,
      [&](auto count, int row, TokenRange seen) {
        softmax_rows<V, E, count.kValue>(b, row, seen, view.units * kUnitTokens);
      },
      [&](int row) { clear_row(b, row, view.units); });
}

// Computes the factors of old state and piece for kLanes rows at once: 2^(max - new max), 0 for
// -inf.
template <class V>
void merge_factors(const float* old_max, const float* piece_max, float* new_max, float* keep,
                   float* take) {
  const typename V::F old = V::load(old_max), piece = V::load(piece_max);
  const typename V::F top = V::max(old, piece), floor = V::set(kExp2Floor);
  V::store(new_max, top);
  // max(x, floor) yields floor for -inf and for the NaN of -inf - -inf.
  V::store(keep, exp2_exact<V>(V::max(V::sub(old, top), floor)));
  V::store(take, exp2_exact<V>(V::max(V::sub(piece, top), floor)));
}

// Merges a piece into the state, which is the left operand: pieces are merged in token order
// everywhere. A piece that a row does not see changes nothing.
template <class V>
void merge(const MergeTask& t) {
  for (int first = 0; first < t.rows; first += V::kLanes) {
    alignas(64) float old[V::kLanes], piece[V::kLanes], top[V::kLanes], keep[V::kLanes],
        take[V::kLanes];
    const int count = min_int(V::kLanes, t.rows - first);
    for (int i = 0; i < V::kLanes; ++i) {
      old[i] = i < count ? t.state.max[first + i] : 0.0f;
      piece[i] = i < count ? t.piece.max[first + i] : 0.0f;
    }
    merge_factors<V>(old, piece, top, keep, take);
    for (int i = 0; i < count; ++i) {
      if (piece[i] == kLowest) {
        continue;
      }
      const int row = first + i;
      t.state.sum[row] = t.state.sum[row] * keep[i] + t.piece.sum[row] * take[i];
      t.state.max[row] = top[i];
      const typename V::F old_factor = V::set(keep[i]), new_factor = V::set(take[i]);
      float* to = t.state.acc + std::ptrdiff_t{row} * t.padded_dim;
      const float* from = t.piece.acc + std::ptrdiff_t{row} * t.padded_dim;
      for (int d = 0; d < t.padded_dim; d += V::kLanes) {
        V::store(to + d,
                 V::fma(V::load(to + d), old_factor, V::mul(V::load(from + d), new_factor)));
      }
    }
  }
}

}  // namespace
}  // namespace quire::attention
