// The attention kernel over canonical pieces, as a template over a vector trait V and an engine of
// products P (which fixes the element format).
//
// For one strip of up to 32 stacked rows and one piece: scores, softmax numerators, values, one
// merge into the running state. A row's piece never depends on the other rows of the strip. Tokens
// that it does not see contribute exact zeros, and a piece that it does not see is not merged.
#pragma once

#include "quire/attention/cpu/codes.h"
#include "quire/attention/cpu/expand.h"
#include "quire/attention/cpu/products.h"
#include "quire/attention/cpu/queries.h"

namespace quire::attention {
namespace {

// Computes the values of a piece. Where a hidden value is not finite, its zero probability would
// not silence it. Then rows that see the same are computed at a time, with everything else zeroed.
template <class V, class P>
void piece_values(const AttentionTask& t, int piece, const PieceRows& rows, PieceView& view,
                  PieceBuffers<typename P::Format>& b) {
  if (!hides_non_finite<typename P::Format>(t, rows, view)) {
    P::values(t, view, b, b.values);
    return;
  }
  for (int row = 0; row < t.rows;) {
    int end = row + 1;
    while (end < t.rows && same_range(rows.seen[row], rows.seen[end])) {
      ++end;
    }
    gather_all_values<typename P::Format>(t, piece, rows.seen[row], view);
    P::values(t, view, b, b.spare);
    for (int i = row * t.padded_dim; i < end * t.padded_dim; i += V::kLanes) {
      V::store(b.values + i, V::load(b.spare + i));
    }
    row = end;
  }
}

// Computes maxima, sums and values of a piece, relative to its own maxima.
template <class V, class P>
void reduce_piece(const AttentionTask& t, int piece, const PieceRows& rows, PieceView& view,
                  PieceBuffers<typename P::Format>& b) {
  if constexpr (P::Format::kCodes) {
    reduce_codes<V, P>(t, piece, rows, view, b);
  } else {
    if constexpr (P::kInterleavedRows <= kStripRows) {
      if (t.soft_cap == 0 && t.rows >= P::kInterleavedRows && sees_all(rows, view)) {
        P::interleaved(t, view, b);
        return;
      }
    }
    P::scores(t, view, b);
    cap_scores<V>(t, view, b);
    softmax_strip<V, typename P::Format>(t, rows, view, b);
    piece_values<V, P>(t, piece, rows, view, b);
  }
}

template <class V, class P>
void attend(const AttentionTask& t) {
  using E = typename P::Format;
  PieceBuffers<E> b;
  for (int piece = t.first_piece; piece < t.last_piece; ++piece) {
    const PieceRows rows = rows_of_piece(t, piece);
    if (rows.units == 0) {
      continue;
    }
    PieceView view = view_piece<E>(t, piece, rows, P::kWholeUnits ? kPieceTokens : rows.end);
    look_ahead(t, piece, view);
    reduce_piece<V, P>(t, piece, rows, view, b);
    merge<V>({t.state, {b.max, b.sum, b.values}, t.rows, t.padded_dim});
  }
}

// Attends to codes C that are expanded to fp32. All of a block's numbers are finite, so hidden ones
// are multiplied with zeros.
template <class V, class C>
void attend_expanded(const AttentionTask& t) {
  using P = VectorProducts<V, Fp32<V>>;
  PieceBuffers<Fp32<V>> b;
  for (int piece = t.first_piece; piece < t.last_piece; ++piece) {
    const PieceRows rows = rows_of_piece(t, piece);
    if (rows.units == 0) {
      continue;
    }
    const PieceView view = ExpandedUnits<V, C>::view_of(t, piece, rows);
    P::scores(t, view, b);
    cap_scores<V>(t, view, b);
    softmax_strip<V, Fp32<V>>(t, rows, view, b);
    P::values(t, view, b, b.values);
    merge<V>({t.state, {b.max, b.sum, b.values}, t.rows, t.padded_dim});
  }
}

template <class V>
constexpr KernelTable vector_table(device::Isa isa) {
  return {.isa = isa,
          .load_queries_bf16 = load_queries<V, WideBf16<V>>,
          .load_queries_fp32 = load_queries<V, Fp32<V>>,
          .load_queries_int8 = load_coded_queries<V>,
          .attend_bf16 = attend<V, VectorProducts<V, WideBf16<V>>>,
          .attend_fp32 = attend<V, VectorProducts<V, Fp32<V>>>,
          .attend_int8 = attend<V, VectorProducts<V, Int8<V>>>,
          .attend_fp8 = attend_expanded<V, Fp8<V>>,
          .attend_int4 = attend_expanded<V, Int4<V>>,
          .merge = merge<V>};
}

// Fills vector_table() for a trait that multiplies bf16 pairs.
template <class V>
constexpr KernelTable bf16_dot_table(device::Isa isa) {
  KernelTable table = vector_table<V>(isa);
  table.load_queries_bf16 = load_queries<V, Bf16<V>>;
  table.attend_bf16 = attend<V, VectorProducts<V, Bf16<V>>>;
  table.bf16_queries = true;
  return table;
}

}  // namespace
}  // namespace quire::attention
