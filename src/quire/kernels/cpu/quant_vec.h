// q8g32, q4g32 and q4m32 matrix kernels as templates over a vector trait (vec_*.h) and a format Q.
//
// Row invariance: the integer sum of a group of 32 is exact, then acc = fma(float(sum), weight
// scale * row scale, acc) with the groups ascending; q4m32 adds acc = fma(minimum, sum of the row's
// inputs, acc) after each. Sets with fused multiply-add agree bit for bit.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::kernels {
namespace {

constexpr int kQuantPrefetchBytes = 4096;

struct Q8g32 {
  static constexpr bool kNibbles = false;
  static constexpr bool kMinimum = false;
  static constexpr int kHeaderBytes = 64;  // scales
  static constexpr int kTileRows = 8;      // of 64 bytes
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct Q4g32 : Q8g32 {
  static constexpr bool kNibbles = true;
  static constexpr int kTileRows = 4;
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};
struct Q4m32 : Q4g32 {
  static constexpr bool kMinimum = true;
  static constexpr int kHeaderBytes = 128;  // scales, minimums
  static constexpr int kStepBytes = kHeaderBytes + 2 * 64 * kTileRows;
};

// Byte offset, inside a step's tiles, of the 64-byte row `row` that holds column `column`.
template <class Q>
constexpr int quant_offset(int column, int row) {
  return (column / 16 * Q::kTileRows + row) * 64 + column % 16 * 4;
}

// What the integer sum of a group starts from, so that it ends as a product with w, or with the
// code itself where there is a minimum.
template <class V, class Q>
typename V::I group_start(std::int32_t offset) {
  if constexpr (Q::kMinimum) {
    return V::start_q4(0);
  } else {
    return Q::kNibbles ? V::start_q4(offset) : V::start_q8(offset);
  }
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
template <class V, int R, int N, class Q>
void group_sums(const std::byte* tiles, const std::int8_t* x, const std::int32_t* offsets,
                typename V::I (&sums)[R][N]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = group_start<V, Q>(offsets[r]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q::kTileRows; ++i) {
    typename V::I first[N];
    typename V::I second[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const std::byte* row = tiles + quant_offset<Q>(n * V::kLanes, i);
      if constexpr (R == 1) {
        __builtin_prefetch(row + kQuantPrefetchBytes);
      }
      first[n] = V::load_bits(row);
      if constexpr (Q::kNibbles) {
        second[n] = V::high_nibbles(first[n]);
        first[n] = V::low_nibbles(first[n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename V::I value = V::set_bits(word_at(x + r * 32 + i * 4));
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        sums[r][n] = Q::kNibbles ? V::dot_q4(sums[r][n], first[n], value)
                                 : V::dot_q8(sums[r][n], first[n], value);
      }
      if constexpr (Q::kNibbles) {
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
template <class V, int R, int N, class Q>
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
  const std::byte* tiles = w + Q::kHeaderBytes + quant_offset<Q>(t.column, 0);
  const std::int8_t* x = t.x;
  const float* scales = t.scales;
  const std::int32_t* offsets = t.offsets;
  for (int s = 0; s < t.steps; ++s) {
    typename V::I sums[R][N];
    group_sums<V, R, N, Q>(tiles, x, offsets, sums);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const typename V::F weight_scale = V::load_fp16(w + (t.column + n * V::kLanes) * 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename V::F scale = V::mul(weight_scale, V::set(scales[r]));
        acc[r][n] = V::fma(V::to_float(sums[r][n]), scale, acc[r][n]);
      }
      if constexpr (Q::kMinimum) {
        const typename V::F minimum = V::load_fp16(w + 64 + (t.column + n * V::kLanes) * 2);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const float inputs = scales[r] * (static_cast<float>(offsets[r]) * -0.125f);
          acc[r][n] = V::fma(minimum, V::set(inputs), acc[r][n]);
        }
      }
    }
    w += Q::kStepBytes;
    tiles += Q::kStepBytes;
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
template <class V, class Q>
void quant_block(const MatmulTask& t, const std::byte* w, int row, float* out) {
  const int block_rows = min_int(kMaxBlockRows, t.rows - row);
  const std::ptrdiff_t group = static_cast<std::ptrdiff_t>(row) * t.steps;
  const auto* x = reinterpret_cast<const std::int8_t*>(t.values) + group * 32;
  for (int c = 0; c < 32; c += V::kQuantRegisters * V::kLanes) {
    for (int r = 0; r < block_rows; r += V::kQuantRows) {
      with_row_count<V::kQuantRows>(block_rows - r, [&](auto rows) {
        quant_tile<V, rows.kValue, V::kQuantRegisters, Q>({.w = w,
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

template <class V, class Q>
void matmul_quant(const MatmulTask& t) {
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::byte* w = t.weights + static_cast<std::size_t>(panel) * t.panel_bytes;
    for (int row = 0; row < t.rows; row += kMaxBlockRows) {
      quant_block<V, Q>(t, w, row,
                        t.out + row * t.out_stride + static_cast<std::ptrdiff_t>(panel) * 32);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
