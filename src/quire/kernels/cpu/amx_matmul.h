// AMX matrix kernels on the same packed bytes as the vector kernels.
//
// bf16: every row, also a single one, goes through TDPBF16PS with the same 32-deep steps, so its
// bits cannot depend on the number of rows. q8, q4: integer group sums are exact, so full blocks of
// 16 rows use TDPBSSD and all other rows the VNNI kernel, with equal bits.
#pragma once

#include "quire/kernels/cpu/amx_tiles.h"
#include "quire/kernels/cpu/quant_vec.h"
#include "quire/kernels/cpu/vec_avx512.h"

namespace quire::kernels {
namespace {

constexpr int kTileStepBytes = 2048;  // bf16: two 16 x 64 byte tiles
constexpr int kTilePrefetchBytes = 4096;

// Returns the shapes of the tiles. Tiles 0..3 hold sums (2 row blocks x 2 column tiles), 4 and 5
// rows, 6 and 7 weights.
AmxTileShapes bf16_shapes(int first_rows, int second_rows) {
  AmxTileShapes shapes;
  constexpr bool kFirst[] = {true, true, false, false, true, false};
  for (int tile = 0; tile < 6; ++tile) {
    shapes.set(tile, kFirst[tile] ? first_rows : second_rows, 64);
  }
  shapes.set(6, 16, 64);
  shapes.set(7, 16, 64);
  return shapes;
}

// Sums of one panel x one or two row blocks: 32 columns wide, `stride` floats between rows.
struct Sums {
  float* data = nullptr;
  std::ptrdiff_t stride = 0;
};

template <bool kTwoBlocks>
void load_sums(const Sums& from) {
  if (from.data == nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwoBlocks) {
      _tile_zero(2);
      _tile_zero(3);
    }
    return;
  }
  _tile_loadd(0, from.data, from.stride * 4);
  _tile_loadd(1, from.data + 16, from.stride * 4);
  if constexpr (kTwoBlocks) {
    _tile_loadd(2, from.data + 16 * from.stride, from.stride * 4);
    _tile_loadd(3, from.data + 16 * from.stride + 16, from.stride * 4);
  }
}

template <bool kTwoBlocks>
void store_sums(const Sums& to) {
  _tile_stored(0, to.data, to.stride * 4);
  _tile_stored(1, to.data + 16, to.stride * 4);
  if constexpr (kTwoBlocks) {
    _tile_stored(2, to.data + 16 * to.stride, to.stride * 4);
    _tile_stored(3, to.data + 16 * to.stride + 16, to.stride * 4);
  }
}

// Depth steps [first_step, first_step + steps) of a panel x some rows.
struct DepthRange {
  const std::byte* panel = nullptr;
  int first_step = 0;
  int steps = 0;
  const std::byte* prefetch = nullptr;  // bytes wanted later: `prefetch_lines` cache lines per step
  int prefetch_lines = 0;
  // Sums of the 32 rows that follow. They are asked for, because stores to absent lines hold up
  // loads.
  Sums next = {};
};

inline void ask_for_sums(const Sums& sums, int row) {
  if (sums.data != nullptr && row < 32) {
    float* to = sums.data + row * sums.stride;
    __builtin_prefetch(to, 1, 2);
    __builtin_prefetch(to + 16, 1, 2);
  }
}

// Multiplies rows [row, row + rows) of the task, rows <= 32. The caller has configured the shapes.
template <bool kTwoBlocks>
void bf16_tiles(const MatmulTask& t, const DepthRange& range, int row, int rows, const Sums& sums) {
  const int rows0 = min_int(16, rows);
  const int rows1 = rows - rows0;
  const std::ptrdiff_t first = range.first_step;
  const std::byte* x0 =
      t.values + (static_cast<std::ptrdiff_t>(row) * t.steps + first * rows0) * 64;
  const std::byte* x1 =
      t.values + (static_cast<std::ptrdiff_t>(row + rows0) * t.steps + first * rows1) * 64;
  const std::byte* w = range.panel + first * kTileStepBytes;
  const std::byte* later = range.prefetch;
  load_sums<kTwoBlocks>(first > 0 ? sums : Sums{});
  for (int s = 0; s < range.steps; ++s) {
    for (int i = 0; i < range.prefetch_lines; ++i, later += 64) {
      __builtin_prefetch(later, 0, 2);
    }
    ask_for_sums(range.next, s);
    _tile_loadd(4, x0, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 1024, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoBlocks) {
      _tile_loadd(5, x1, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    w += kTileStepBytes;
    x0 += static_cast<std::ptrdiff_t>(rows0) * 64;
    x1 += static_cast<std::ptrdiff_t>(rows1) * 64;
  }
  store_sums<kTwoBlocks>(sums);
}

// Returns the bytes multiplied after depth block [step, step + block_steps) of a panel. They are
// that block of the next panel, else the next block of the first, else the thread's next ones.
// Null: unknown.
inline const std::byte* next_block(const MatmulTask& t, int panel, int step, int block_steps) {
  if (panel + 1 < t.panels) {
    return t.weights + static_cast<std::size_t>(panel + 1) * t.panel_bytes +
           static_cast<std::size_t>(step) * kTileStepBytes;
  }
  if (step + block_steps < t.steps) {
    return t.weights + static_cast<std::size_t>(step + block_steps) * kTileStepBytes;
  }
  return t.next_weights;
}

// Multiplies more rows than two blocks have. The rows and one panel of a depth block stay in the
// second cache. While one panel is used, a share of the next one is fetched per 32 rows, and so are
// the sums that come next.
void bf16_many_rows(const MatmulTask& t) {
  constexpr int kBlockSteps = 64;
  const AmxTileShapes pair = bf16_shapes(16, 16);
  const int last_rows = t.rows % 32;
  const AmxTileShapes last = bf16_shapes(min_int(16, last_rows), max_int(1, last_rows - 16));
  const bool partial = t.rows % 16 != 0;  // full blocks, one or two, have the shapes of a pair
  AmxTileGuard guard(pair);
  const int lines = 32 / min_int(32, (t.rows + 31) / 32);
  for (int s = 0; s < t.steps; s += kBlockSteps) {
    for (int p = 0; p < t.panels; ++p) {
      DepthRange range = {.panel = t.weights + static_cast<std::size_t>(p) * t.panel_bytes,
                          .first_step = s,
                          .steps = min_int(kBlockSteps, t.steps - s),
                          .prefetch = next_block(t, p, s, kBlockSteps)};
      range.prefetch_lines = range.prefetch != nullptr ? lines : 0;
      float* out = t.out + static_cast<std::ptrdiff_t>(p) * 32;
      int row = 0;
      for (; row + 32 <= t.rows; row += 32, out += 32 * t.out_stride) {
        float* below = row + 64 <= t.rows  ? out + 32 * t.out_stride
                       : p + 1 == t.panels ? nullptr
                                           : t.out + static_cast<std::ptrdiff_t>(p + 1) * 32;
        range.next = {below, t.out_stride};
        bf16_tiles<true>(t, range, row, 32, {out, t.out_stride});
        range.prefetch += static_cast<std::ptrdiff_t>(range.steps) * range.prefetch_lines * 64;
      }
      if (row == t.rows) {
        continue;
      }
      if (partial) {
        guard.change(last);
      }
      range.next = {};
      last_rows > 16 ? bf16_tiles<true>(t, range, row, last_rows, {out, t.out_stride})
                     : bf16_tiles<false>(t, range, row, last_rows, {out, t.out_stride});
      if (partial) {
        guard.change(pair);
      }
    }
  }
}

// Multiplies up to two blocks of rows, and reads the weights once, as a stream.
void bf16_stream(const MatmulTask& t) {
  const AmxTileGuard guard(bf16_shapes(min_int(16, t.rows), max_int(1, t.rows - 16)));
  for (int p = 0; p < t.panels; ++p) {
    const std::byte* panel = t.weights + static_cast<std::size_t>(p) * t.panel_bytes;
    const DepthRange range = {.panel = panel,
                              .steps = t.steps,
                              .prefetch = panel + kTilePrefetchBytes,
                              .prefetch_lines = kTileStepBytes / 64};
    const Sums sums = {t.out + static_cast<std::ptrdiff_t>(p) * 32, t.out_stride};
    t.rows > 16 ? bf16_tiles<true>(t, range, 0, t.rows, sums)
                : bf16_tiles<false>(t, range, 0, t.rows, sums);
  }
}

void amx_matmul_bf16(const MatmulTask& t) { t.rows > 32 ? bf16_many_rows(t) : bf16_stream(t); }

// A panel in the task's scratch memory as signed bytes [steps][2 tiles][8 quads][16][4] and fp32
// scales [steps][32]. The minimums [32] follow each of these where there are some.
struct SignedPanel {
  std::int8_t* codes = nullptr;
  float* scales = nullptr;
};

template <class Q>
constexpr int kHeaderFloats = Unpacked<Q>::kHeaderBytes / 4;

// Takes off codes what their format adds.
template <class Q>
__m512i signed_codes(__m512i codes, __m512i table) {
  if constexpr (Q::kTable) {
    return _mm512_xor_si512(VecAvx512::lookup(table, codes), _mm512_set1_epi8(-128));
  } else if constexpr (Q::kNibbles) {
    return _mm512_sub_epi8(codes, _mm512_set1_epi8(Q::kMinimum ? 0 : 8));
  } else {
    return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
  }
}

template <class Q>
SignedPanel unpack_panel(const std::byte* w, int steps, std::byte* scratch) {
  const SignedPanel panel = {
      reinterpret_cast<std::int8_t*>(scratch),
      reinterpret_cast<float*>(scratch + static_cast<std::size_t>(steps) * 1024)};
  const __m512i table = Q::kTable ? VecAvx512::load_table(w) : _mm512_setzero_si512();
  w += Q::kHeadBytes;
  for (int s = 0; s < steps; ++s, w += Q::kStepBytes) {
    std::int8_t* to = panel.codes + static_cast<std::ptrdiff_t>(s) * 1024;
    float* header = panel.scales + static_cast<std::ptrdiff_t>(s) * kHeaderFloats<Q>;
    unpack_header<VecAvx512, Q>(w, header);
    for (int i = 0; i < 2 * Q::kTileRows; ++i) {
      const __m512i bits = _mm512_loadu_si512(w + Q::kHeaderBytes + i * 64);
      if constexpr (Q::kNibbles) {  // byte row i of tile i / 4 holds quads i % 4 and i % 4 + 4
        std::int8_t* low = to + i / 4 * 512 + i % 4 * 64;
        _mm512_storeu_si512(low, signed_codes<Q>(VecAvx512::low_nibbles(bits), table));
        _mm512_storeu_si512(low + 256, signed_codes<Q>(VecAvx512::high_nibbles(bits), table));
      } else {
        _mm512_storeu_si512(to + i * 64, signed_codes<Q>(bits, table));
      }
    }
  }
  fence_amx_tile_loads();
  return panel;
}

// 16 rows over the whole depth.
struct QuantBlock {
  const std::int8_t* x = nullptr;  // [steps][16][32]
  const float* scales = nullptr;   // [steps][16]
  const std::int32_t* offsets = nullptr;
  int steps = 0;
};

// Adds float(sums[row]) * (weight scales * row scale) of group `group` to acc[row], for 16 rows x
// 16 columns. Then adds what the minimums contribute. The operations are those of add_scaled and
// add_minimums in quant_vec.h.
template <class Q>
[[gnu::always_inline]] inline void add_group(const std::int32_t* sums, const float* header,
                                             const QuantBlock& block, int group,
                                             __m512 (&acc)[16]) {
  const __m512 weight_scales = _mm512_loadu_ps(header);
  const float* row_scales = block.scales + group * 16;
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    const __m512 scale = _mm512_mul_ps(weight_scales, _mm512_set1_ps(row_scales[r]));
    acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + r * 16)), scale, acc[r]);
  }
  if constexpr (Q::kMinimum) {
    const __m512 minimums = _mm512_loadu_ps(header + 32);
    const __m512i offsets = _mm512_loadu_si512(block.offsets + group * 16);
    alignas(64) float inputs[16];  // sums of the rows' inputs
    _mm512_store_ps(
        inputs, _mm512_mul_ps(_mm512_loadu_ps(row_scales),
                              _mm512_mul_ps(_mm512_cvtepi32_ps(offsets), _mm512_set1_ps(-0.125f))));
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      acc[r] = _mm512_fmadd_ps(minimums, _mm512_set1_ps(inputs[r]), acc[r]);
    }
  }
}

// Tile i = integer sums of the i-th group from x and w on. Macros, because gcc pastes tile numbers
// into the instruction's text.
#define QUIRE_MULTIPLY_GROUP(i, rows_tile, weights_tile) \
  _tile_loadd(rows_tile, x + (i) * 512, 32);             \
  _tile_loadd(weights_tile, w + (i) * 1024, 64);         \
  _tile_zero(i);                                         \
  _tile_dpbssd(i, rows_tile, weights_tile)

// One group: multiplied four groups before it is scaled, stored two before.
#define QUIRE_TURN(i, two_on, rows_tile, weights_tile) \
  if (more) {                                          \
    QUIRE_MULTIPLY_GROUP(i, rows_tile, weights_tile);  \
  }                                                    \
  _tile_stored(two_on, sums[two_on], 64);              \
  add_group<Q>(sums[i], header + (i) * kHeaderFloats<Q>, block, s + (i), acc)

// Multiplies 16 rows by 16 columns (tile `half` of the panel). Tiles reach vector registers only
// through memory, so three groups are under way at a time. A store right behind its product would
// wait for it and hold up what follows (measured: ADR 0021).
template <class Q>
void quant_tile_amx(const SignedPanel& panel, int half, const QuantBlock& block, float* out,
                    std::ptrdiff_t out_stride) {
  alignas(64) std::int32_t sums[4][256];
  __m512 acc[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    acc[r] = _mm512_setzero_ps();
  }
  const std::int8_t* x = block.x;
  const std::int8_t* w = panel.codes + half * 512;
  const float* header = panel.scales + half * 16;
  int s = 0;
  if (block.steps >= 4) {
    QUIRE_MULTIPLY_GROUP(0, 4, 6);
    QUIRE_MULTIPLY_GROUP(1, 5, 7);
    QUIRE_MULTIPLY_GROUP(2, 4, 6);
    _tile_stored(0, sums[0], 64);
    QUIRE_MULTIPLY_GROUP(3, 5, 7);
    _tile_stored(1, sums[1], 64);
    x += 4 * 512;
    w += 4 * 1024;
  }
  for (; s + 4 <= block.steps; s += 4) {
    const bool more = s + 8 <= block.steps;
    QUIRE_TURN(0, 2, 4, 6);
    QUIRE_TURN(1, 3, 5, 7);
    QUIRE_TURN(2, 0, 4, 6);
    QUIRE_TURN(3, 1, 5, 7);
    if (more) {
      x += 4 * 512;
      w += 4 * 1024;
    }
    header += 4 * kHeaderFloats<Q>;
  }
  for (; s < block.steps; ++s) {
    QUIRE_MULTIPLY_GROUP(0, 4, 6);
    _tile_stored(0, sums[0], 64);
    add_group<Q>(sums[0], header, block, s, acc);
    x += 512;
    w += 1024;
    header += kHeaderFloats<Q>;
  }
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    _mm512_storeu_ps(out + r * out_stride, acc[r]);
  }
}

#undef QUIRE_TURN
#undef QUIRE_MULTIPLY_GROUP

// Returns the task of the rows behind the first `full` ones, for one panel.
inline MatmulTask behind_full_blocks(const MatmulTask& t, int full, int panel) {
  MatmulTask last = t;
  const std::ptrdiff_t groups = static_cast<std::ptrdiff_t>(full) * t.steps;
  last.weights += static_cast<std::size_t>(panel) * t.panel_bytes;
  last.next_weights = nullptr;
  last.panels = 1;
  last.values += groups * 32;
  last.scales += groups;
  last.offsets += groups;
  last.first_offsets += groups;
  last.rows -= full;
  last.out += full * t.out_stride + static_cast<std::ptrdiff_t>(panel) * 32;
  return last;
}

// Multiplies at least one full block of rows. Vectors multiply the rows that fill no block. Tiles
// 0..3 hold sums, 4 and 5 rows (16 x 32 bytes), 6 and 7 weights (8 quads).
template <class Q>
void quant_many_rows(const MatmulTask& t) {
  AmxTileShapes shapes;
  for (int tile = 0; tile < 4; ++tile) {
    shapes.set(tile, 16, 64);
  }
  shapes.set(4, 16, 32);
  shapes.set(5, 16, 32);
  shapes.set(6, 8, 64);
  shapes.set(7, 8, 64);
  const AmxTileGuard guard(shapes);
  const int full = t.rows / 16 * 16;
  for (int p = 0; p < t.panels; ++p) {
    const std::byte* w = t.weights + static_cast<std::size_t>(p) * t.panel_bytes;
    const SignedPanel panel = unpack_panel<Q>(w, t.steps, t.scratch);
    Ahead ahead =
        Ahead::over(p + 1 < t.panels ? w + t.panel_bytes : t.next_weights,
                    static_cast<std::ptrdiff_t>(t.panel_bytes), full / 8);  // once per tile
    for (int row = 0; row < full; row += 16) {
      const std::ptrdiff_t group = static_cast<std::ptrdiff_t>(row) * t.steps;
      const auto* x = reinterpret_cast<const std::int8_t*>(t.values) + group * 32;
      float* out = t.out + row * t.out_stride + static_cast<std::ptrdiff_t>(p) * 32;
      for (int half = 0; half < 2; ++half) {
        ahead.ask();
        quant_tile_amx<Q>(panel, half, {x, t.scales + group, t.offsets + group, t.steps},
                          out + half * 16, t.out_stride);
      }
    }
    fence_amx_tile_loads();  // the scratch is written again now
    if (full < t.rows) {
      matmul_quant<VecAvx512, Q>(behind_full_blocks(t, full, p));
    }
  }
}

// Below two row blocks VNNI is as fast: unpacking the panel and scaling through memory cost too
// much.
constexpr int kFewestTileRows = 32;

template <class Q>
void amx_matmul_quant(const MatmulTask& t) {
  t.rows < kFewestTileRows ? matmul_quant<VecAvx512, Q>(t) : quant_many_rows<Q>(t);
}

}  // namespace
}  // namespace quire::kernels
