// The two products on AMX tiles, for bf16. The paged layout is the tile layout. 32 dims of a K unit
// are two weight tiles of 16 pairs x 16 tokens. 32 dims of a V unit are two of 16 token pairs x 16
// dims.
#pragma once

#include "quire/attention/cpu/attend.h"
#include "quire/kernels/cpu/amx_tiles.h"
#include "quire/kernels/cpu/vec_avx512_bf16.h"

namespace quire::attention {
namespace {

// Multiplies up to 16 rows with 32 columns, into the first two sums.
inline void amx_multiply_first(const void* left, const Word* right, std::ptrdiff_t stride) {
  constexpr int kTileColumns = 16;
  _tile_loadd(4, left, 64);
  _tile_loadd(6, right, stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right + kTileColumns, stride);
  _tile_dpbf16ps(1, 4, 7);
}

// Adds the products of one step to the sums. `left` has 64 bytes per row. Tiles: see
// AmxProductsOf::shapes.
template <bool kTwo>
void amx_multiply(const void* left, const Word* right, std::ptrdiff_t right_stride_words) {
  amx_multiply_first(left, right, right_stride_words * kWordBytes);
  if constexpr (kTwo) {
    _tile_loadd(5, static_cast<const std::byte*>(left) + 16 * 64, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Adds the products of one step of up to 16 rows with 64 columns to the sums: 32 columns by either
// left operand.
inline void amx_multiply_wide(const void* left, const void* second_left, const Word* right,
                              std::ptrdiff_t right_stride_words) {
  constexpr int kTileColumns = 16;
  const std::ptrdiff_t stride = right_stride_words * kWordBytes;
  amx_multiply_first(left, right, stride);
  _tile_loadd(5, second_left, 64);
  _tile_loadd(6, right + 2 * kTileColumns, stride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_loadd(7, right + 3 * kTileColumns, stride);
  _tile_dpbf16ps(3, 5, 7);
}

// Sets all sums to zero: of up to 16 rows, or of more.
template <bool kTwo>
void amx_clear() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// Sets the sums of both tiles of columns to the same 16 numbers per row.
template <bool kTwo>
void amx_load_scores(const float* scores, int stride) {
  const std::ptrdiff_t bytes = stride * std::ptrdiff_t{sizeof(float)};
  _tile_loadd(0, scores, bytes);
  _tile_loadd(1, scores, bytes);
  if constexpr (kTwo) {
    _tile_loadd(2, scores + 16 * stride, bytes);
    _tile_loadd(3, scores + 16 * stride, bytes);
  }
}

// Adds the products of one step with 16 columns to the sums in tiles 0 and 2, and stores those.
template <bool kTwo>
void amx_multiply_column(const void* left, const Word* right) {
  _tile_loadd(6, right, 64);
  _tile_loadd(4, left, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kTwo) {
    _tile_loadd(5, static_cast<const std::byte*>(left) + 16 * 64, 64);
    _tile_dpbf16ps(2, 5, 6);
  }
}
template <bool kTwo>
void amx_store_column(float* out, int stride) {
  const std::ptrdiff_t bytes = stride * std::ptrdiff_t{sizeof(float)};
  _tile_stored(0, out, bytes);
  if constexpr (kTwo) {
    _tile_stored(2, out + 16 * stride, bytes);
  }
}

// Left operands that do not depend on the unit: queries and probabilities, as the format has them.
struct QueriesAsLoaded {
  static const void* queries(const AttentionTask& t, const auto&, int chunk) {
    return t.q + std::ptrdiff_t{chunk} * t.rows * kChunkWords * kWordBytes;
  }
  template <bool kTwo>
  static void begin_scores(const auto&) {
    amx_clear<kTwo>();
  }
  static void weigh(const AttentionTask&, const auto&, const auto&, int, int, int) {}
  static const void* weights(const auto&, const auto& b, int i, int) { return b.probs[i][0]; }
  static void finish_values(const AttentionTask&, const auto&, float*) {}
};

// Units of bf16, multiplied where they lie.
struct PlainUnits : QueriesAsLoaded {
  using Format = Bf16<kernels::VecAvx512Bf16>;
  using View = PieceView;
  static void keys(const AttentionTask&, const View&, int) {}
  static void values(const AttentionTask&, const View&, int, int, int) {}
};

// Calls Units::keys before K of a unit is multiplied with Units::queries. Units::values comes
// before some columns of V are multiplied with Units::weights, and weigh before the first are.
// add_offsets and finish_values add what else belongs to scores and values.
template <class Units>
struct AmxProductsOf {
  using V = kernels::VecAvx512;  // around the tiles
  using Format = typename Units::Format;
  using View = typename Units::View;
  using Buffers = PieceBuffers<Format>;
  static constexpr int kTileColumns = 16;
  static constexpr bool kWholeUnits = true;
  static constexpr int kInterleavedRows = 1;

  // Returns the shapes of the tiles. Tiles 0 and 1 hold sums of the first 16 rows. 2 and 3 hold
  // those of the others, or where there are none those of 32 more columns. Tiles 4 and 5 hold the
  // left operands of both, 6 and 7 right operands.
  static kernels::AmxTileShapes shapes(int rows) {
    const int first = min_int(16, rows), second = rows > 16 ? rows - 16 : rows;
    kernels::AmxTileShapes s;
    for (const int tile : {0, 1, 4}) {
      s.set(tile, first, 64);
    }
    for (const int tile : {2, 3, 5}) {
      s.set(tile, second, 64);
    }
    for (const int tile : {6, 7}) {
      s.set(tile, 16, 64);
    }
    return s;
  }

  static void scores(const AttentionTask& t, const View& view, Buffers& b) {
    for (int i = 0; i < view.units; ++i) {
      float* out = &b.scores[0][i * kUnitTokens];
      t.rows > 16 ? score_unit<true>(t, view, i, out) : score_unit<false>(t, view, i, out);
    }
  }

  static void values(const AttentionTask& t, const View& view, const Buffers& b, float* out) {
    t.rows > 16 ? all_values<true>(t, view, b, out, [](int) {})
                : all_values<false>(t, view, b, out, [](int) {});
  }

  // Computes scores, softmax and values of a piece that all rows see whole, with the bits of the
  // three one by one. Tiles multiply a unit while vectors work on its neighbour. One by one, each
  // would wait for what the one before has just stored: a fifth of the time.
  static void interleaved(const AttentionTask& t, const View& view, Buffers& b) {
    t.rows > 16 ? interleave<true>(t, view, b) : interleave<false>(t, view, b);
  }

  template <bool kTwo>
  static void interleave(const AttentionTask& t, const View& view, Buffers& b) {
    RowLanes<V> rows;
    for (int r = 0; r < t.rows; ++r) {
      V::store(rows.lanes[r], V::set(kLowest));
    }
    for (int i = 0; i <= view.units; ++i) {
      if (i < view.units) {
        score_unit<kTwo>(t, view, i, &b.scores[0][i * kUnitTokens]);
        kernels::fence_amx_tile_loads();
      }
      if (i > 0) {
        add_maxima(t, i - 1, b, rows);
      }
    }
    for (int r = 0; r < t.rows; ++r) {
      set_maximum<V>(b, r, V::load(rows.lanes[r]));
      V::store(rows.lanes[r], V::zero());
    }
    all_values<kTwo>(t, view, b, b.values,
                     [&](int i) { add_probabilities<V, Format>(t, b, i, rows); });
    for (int r = 0; r < t.rows; ++r) {
      b.sum[r] = V::reduce_add(V::load(rows.lanes[r]));
    }
  }

  static void add_maxima(const AttentionTask& t, int i, const Buffers& b, RowLanes<V>& rows) {
    for (int r = 0; r < t.rows; ++r) {
      V::F peak = V::load(rows.lanes[r]);
      for (int lane = 0; lane < kUnitTokens; lane += V::kLanes) {
        peak = V::max(peak, score_at<V>(b, r, i * kUnitTokens + lane));
      }
      V::store(rows.lanes[r], peak);
    }
  }

  template <bool kTwo>
  static void store(float* out, int stride) {
    const std::ptrdiff_t bytes = stride * std::ptrdiff_t{sizeof(float)};
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + kTileColumns, bytes);
    if constexpr (kTwo) {
      _tile_stored(2, out + 16 * stride, bytes);
      _tile_stored(3, out + 16 * stride + kTileColumns, bytes);
    }
  }

  template <bool kTwo>
  static void score_unit(const AttentionTask& t, const View& view, int i, float* out) {
    const std::ptrdiff_t k_step = kChunkWords * view.k_stride;
    if (i == 0) {
      Units::keys(t, view, 0);
    }
    Units::template begin_scores<kTwo>(view);
    for (int chunk = 0; chunk < t.padded_dim / 32; ++chunk) {
      amx_multiply<kTwo>(Units::queries(t, view, chunk), view.k[i] + chunk * k_step, view.k_stride);
    }
    if (i + 1 < view.units) {  // now, so that its tiles do not wait for what was just stored
      Units::keys(t, view, i + 1);
    }
    store<kTwo>(out, kPieceTokens);
  }

  // Computes values, some columns at a time. Calls before(unit) while tiles multiply the first
  // columns of the unit before it.
  template <bool kTwo, class Before>
  static void all_values(const AttentionTask& t, const View& view, const Buffers& b, float* out,
                         Before before) {
    int columns = 0;
    for (int dim = 0; dim < t.padded_dim; dim += columns) {
      columns = kTwo ? 2 * kTileColumns : min_int(4 * kTileColumns, t.padded_dim - dim);
      const bool wide = columns > 2 * kTileColumns;
      wide ? amx_clear<true>() : amx_clear<kTwo>();
      for (int i = 0; i <= view.units; ++i) {
        if (i < view.units) {
          Units::values(t, view, i, dim, columns);
          if (dim == 0) {
            before(i);
          }
          Units::weigh(t, view, b, i, dim, columns);
          kernels::fence_amx_tile_loads();
        }
        if (i > 0) {
          multiply_values<kTwo>(t, view, b, i - 1, dim, wide);
        }
      }
      wide ? store_wide(out + dim, t.padded_dim) : store<kTwo>(out + dim, t.padded_dim);
    }
    Units::finish_values(t, view, out);
  }

  template <bool kTwo>
  static void multiply_values(const AttentionTask& t, const View& view, const Buffers& b, int i,
                              int dim, bool wide) {
    const Word* const right = view.v[i] + dim;
    const void* const left = Units::weights(view, b, i, 0);
    if (wide) {
      amx_multiply_wide(left, Units::weights(view, b, i, 1), right, t.padded_dim);
    } else {
      amx_multiply<kTwo>(left, right, t.padded_dim);
    }
  }

  static void store_wide(float* out, int stride) {
    const std::ptrdiff_t bytes = stride * std::ptrdiff_t{sizeof(float)};
    _tile_stored(0, out, bytes);
    _tile_stored(1, out + kTileColumns, bytes);
    _tile_stored(2, out + std::ptrdiff_t{2} * kTileColumns, bytes);
    _tile_stored(3, out + std::ptrdiff_t{3} * kTileColumns, bytes);
  }
};

using AmxProducts = AmxProductsOf<PlainUnits>;

void amx_attend(const AttentionTask& t) {
  const kernels::AmxTileShapes shapes = AmxProducts::shapes(t.rows);
  const kernels::AmxTileGuard guard(shapes);
  attend<AmxProducts::V, AmxProducts>(t);
}

}  // namespace
}  // namespace quire::attention
