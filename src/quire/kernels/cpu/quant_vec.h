// q8g32 and q4g32 matrix kernels as templates over a vector trait (vec_*.h).
//
// Row invariance: the integer sum of a group of 32 is exact, then acc = fma(float(sum), weight
// scale
// * row scale, acc) with the groups ascending. Sets with fused multiply-add agree bit for bit.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::kernels {
namespace {

constexpr int kQ8StepBytes = 1088;
constexpr int kQ4StepBytes = 576;
constexpr int kScaleBytes = 64;
constexpr int kQuantPrefetchBytes = 4096;

// Byte offset, inside a step's tiles, of the 64-byte row `row` that holds column `column`.
template <bool kQ4>
constexpr int quant_offset(int column, int row) {
  return column / 16 * (kQ4 ? 256 : 512) + row * 64 + column % 16 * 4;
}

// Operands of one register tile over the whole depth.
struct QuantTile {
  const std::byte* w = nullptr;  // of the panel
  int column = 0;                // first column inside the panel
  int steps = 0;
  const std::int8_t* x = nullptr;  // of the first row: [steps][block_rows][32]
  const float* scales = nullptr;   // [steps][block_rows]
  const std::int32_t* offsets = nullptr;
  int block_rows = 0;
  float* out = nullptr;
  std::ptrdiff_t out_stride = 0;
};

// Integer sums of one group, R rows x N registers. `tiles` is past the scales; x: [block_rows][32].
template <class V, int R, int N, bool kQ4>
void group_sums(const std::byte* tiles, const std::int8_t* x, const std::int32_t* offsets,
                typename V::I (&sums)[R][N]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = kQ4 ? V::start_q4(offsets[r]) : V::start_q8(offsets[r]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < (kQ4 ? 4 : 8); ++i) {
    typename V::I first[N];
    typename V::I second[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const std::byte* row = tiles + quant_offset<kQ4>(n * V::kLanes, i);
      if constexpr (R == 1) {
        __builtin_prefetch(row + kQuantPrefetchBytes);
      }
      first[n] = V::load_bits(row);
      if constexpr (kQ4) {
        second[n] = V::high_nibbles(first[n]);
        first[n] = V::low_nibbles(first[n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename V::I value = V::set_bits(word_at(x + r * 32 + i * 4));
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums[r][n] =
            kQ4 ? V::dot_q4(sums[r][n], first[n], value) : V::dot_q8(sums[r][n], first[n], value);
      }
      if constexpr (kQ4) {
        const typename V::I later = V::set_bits(word_at(x + r * 32 + 16 + i * 4));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sums[r][n] = V::dot_q4(sums[r][n], second[n], later);
        }
      }
    }
  }
}

// R rows x N registers of columns.
template <class V, int R, int N, bool kQ4>
void quant_tile(const QuantTile& t) {
  typename V::F acc[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      acc[r][n] = V::zero();
    }
  }
  const std::byte* w = t.w;
  const std::byte* tiles = w + kScaleBytes + quant_offset<kQ4>(t.column, 0);
  const std::int8_t* x = t.x;
  const float* scales = t.scales;
  const std::int32_t* offsets = t.offsets;
  for (int s = 0; s < t.steps; ++s) {
    typename V::I sums[R][N];
    group_sums<V, R, N, kQ4>(tiles, x, offsets, sums);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const typename V::F weight_scale = V::load_fp16(w + (t.column + n * V::kLanes) * 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename V::F scale = V::mul(weight_scale, V::set(scales[r]));
        acc[r][n] = V::fma(V::to_float(sums[r][n]), scale, acc[r][n]);
      }
    }
    w += kQ4 ? kQ4StepBytes : kQ8StepBytes;
    tiles += kQ4 ? kQ4StepBytes : kQ8StepBytes;
    x += t.block_rows * 32;
    scales += t.block_rows;
    offsets += t.block_rows;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      V::store(t.out + r * t.out_stride + n * V::kLanes, acc[r][n]);
    }
  }
}

// One panel x the rows of the block that starts at row `row` of the task.
template <class V, bool kQ4>
void quant_block(const MatmulTask& t, const std::byte* w, int row, float* out) {
  const int block_rows = min_int(kMaxBlockRows, t.rows - row);
  const std::ptrdiff_t group = static_cast<std::ptrdiff_t>(row) * t.steps;
  const auto* x = reinterpret_cast<const std::int8_t*>(t.values) + group * 32;
  for (int c = 0; c < 32; c += V::kQuantRegisters * V::kLanes) {
    for (int r = 0; r < block_rows; r += V::kQuantRows) {
      with_row_count<V::kQuantRows>(block_rows - r, [&](auto rows) {
        quant_tile<V, rows.kValue, V::kQuantRegisters, kQ4>({.w = w,
                                                             .column = c,
                                                             .steps = t.steps,
                                                             .x = x + r * 32,
                                                             .scales = t.scales + group + r,
                                                             .offsets = t.offsets + group + r,
                                                             .block_rows = block_rows,
                                                             .out = out + r * t.out_stride + c,
                                                             .out_stride = t.out_stride});
      });
    }
  }
}

template <class V, bool kQ4>
void matmul_quant(const MatmulTask& t) {
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::byte* w = t.weights + static_cast<std::size_t>(panel) * t.panel_bytes;
    for (int row = 0; row < t.rows; row += kMaxBlockRows) {
      quant_block<V, kQ4>(t, w, row,
                          t.out + row * t.out_stride + static_cast<std::ptrdiff_t>(panel) * 32);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
