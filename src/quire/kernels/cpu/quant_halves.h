// Steps whose two halves of 16 inputs have scales of their own (t4g16, q2m16). Here are products
// with one half, and the unpacking of headers of every format.
//
// A half's integer sum is exact, then acc = fma(float(sum), weight scale * row scale, acc). With a
// minimum, acc = fma(minimum, sum of the half's inputs, acc) follows. The first half goes first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cpu/kernel_util.h"
#include "quire/kernels/cpu/quant_formats.h"

namespace quire::kernels {
namespace {

constexpr int kMultiplesAt = 128;  // of scales, in the header of a step; 32 for each half
constexpr int kMinimumsAt = 64;    // q2m16: fp16
constexpr int kMinimumMultiplesAt = 192;

// Returns the scales of kLanes columns for one half.
template <class V, class Q>
typename V::F half_scales(const std::byte* header, int half, int column) {
  if constexpr (Q::kPlanes == 1) {
    return V::load(reinterpret_cast<const float*>(header) + half * 32 + column);
  } else {
    const typename V::F multiple =
        V::to_float(V::load_int8(header + kMultiplesAt + half * 32 + column));
    if constexpr (Q::kScaleBytes == 2) {
      return V::mul(V::load_fp16(header + column * 2), multiple);
    } else {
      return V::mul(V::load(reinterpret_cast<const float*>(header) + column), multiple);
    }
  }
}

template <class V, class Q>
typename V::F half_minimums(const std::byte* header, int half, int column) {
  if constexpr (Q::kPlanes == 1) {
    return V::load(reinterpret_cast<const float*>(header) + 64 + half * 32 + column);
  } else {
    return V::mul(V::load_fp16(header + kMinimumsAt + column * 2),
                  V::to_float(V::load_int8(header + kMinimumMultiplesAt + half * 32 + column)));
  }
}

// The rows of a tile at one step.
struct HalfRows {
  const std::int8_t* x = nullptr;  // [rows][32]
  const float* scales = nullptr;   // [rows]
  const std::int32_t* offsets = nullptr;
  const std::int32_t* first_offsets = nullptr;

  // Returns -8 times the sum of a row's values in a half.
  template <int Half>
  [[nodiscard]] std::int32_t offset(int r) const {
    return Half == 0 ? first_offsets[r] : offsets[r] - first_offsets[r];
  }
};

// Computes the integer sums of one half, for R rows x N registers. The half's inputs are half of
// the planes or, where a byte is a code, half of the rows of bytes.
template <class V, int R, int N, int Half, class Q>
[[gnu::always_inline]] inline void half_sums(const std::byte* tiles, typename V::I table,
                                             const HalfRows& rows, typename V::I (&sums)[R][N]) {
  constexpr bool kBytes = Q::kPlanes == 1;
  constexpr int kFirstRow = kBytes ? Half * Q::kTileRows / 2 : 0;
  constexpr int kRows = kBytes ? Q::kTileRows / 2 : Q::kTileRows;
  constexpr int kFirstPlane = kBytes ? 0 : Half * Q::kPlanes / 2;
  constexpr int kPlanes = kBytes ? 1 : Q::kPlanes / 2;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = group_start<V, Q>(rows.offset<Half>(r));
    }
  }
#pragma GCC unroll 8
  for (int i = kFirstRow; i < kFirstRow + kRows; ++i) {
#pragma GCC unroll 2
    for (int plane = kFirstPlane; plane < kFirstPlane + kPlanes; ++plane) {
      typename V::I codes[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const std::byte* row = tiles + quant_offset<Q>(n * V::kLanes, i);
        codes[n] = code_plane<V, Q>(in_order<V>(V::load_bits(row)), table, plane);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const std::int8_t* x = rows.x + r * 32 + plane * (32 / Q::kPlanes) + i * 4;
        const typename V::I value = in_order<V>(V::set_bits(word_at(x)));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sums[r][n] = in_order<V>(group_dot<V, Q>(sums[r][n], codes[n], value));
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = group_end<V, Q>(sums[r][n], rows.offset<Half>(r));
    }
  }
}

// Adds to `acc` what one half of the step at `w` contributes, for R rows x N registers of columns
// from `column` on.
template <class V, int R, int N, int Half, class Q>
[[gnu::always_inline]] inline void add_half(const std::byte* w, int column, typename V::I table,
                                            const HalfRows& rows, typename V::F (&acc)[R][N]) {
  typename V::I sums[R][N];
  half_sums<V, R, N, Half, Q>(w + Q::kHeaderBytes + quant_offset<Q>(column, 0), table, rows, sums);
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const typename V::F weight_scale = half_scales<V, Q>(w, Half, column + n * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename V::F scale = V::mul(weight_scale, V::set(rows.scales[r]));
      acc[r][n] = V::fma(V::to_float(sums[r][n]), scale, acc[r][n]);
    }
    if constexpr (Q::kMinimum) {
      const typename V::F minimum = half_minimums<V, Q>(w, Half, column + n * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const float inputs = rows.scales[r] * (static_cast<float>(rows.offset<Half>(r)) * -0.125f);
        acc[r][n] = V::fma(minimum, V::set(inputs), acc[r][n]);
      }
    }
  }
}

// Writes the header of a step as Unpacked<Q> has it.
template <class V, class Q>
void unpack_header(const std::byte* w, float* header) {
  if constexpr (Q::kHalves == 2) {
    for (int i = 0; i < 64; i += V::kLanes) {
      V::store(header + i, half_scales<V, Q>(w, i / 32, i % 32));
      if constexpr (Q::kMinimum) {
        V::store(header + 64 + i, half_minimums<V, Q>(w, i / 32, i % 32));
      }
    }
  } else if constexpr (Q::kScaleBytes == 4) {
    for (int i = 0; i < 32; i += V::kLanes) {
      V::store(header + i, V::load(reinterpret_cast<const float*>(w) + i));
    }
  } else {
    for (int i = 0; i < Q::kHeaderBytes / 2; i += V::kLanes) {
      V::store(header + i, V::load_fp16(w + i * 2));
    }
  }
}

}  // namespace
}  // namespace quire::kernels
