// Parts of the kernels of e4m3_products.cu: products of a warpgroup with both operands e4m3 (PTX
// ISA, wgmma.mma_async), and sums of slices. Only for sm_90a: includers ask
// QUIRE_WGMMA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/e4m3_rows.h"
#include "quire/kernels/cuda/hopper.cuh"
#include "quire/kernels/cuda/warpgroup.cuh"
#include "quire/kernels/device_codes.h"

namespace quire::kernels::cuda {

inline constexpr int kProductColumns = 8;  // of a product's smallest part

struct E4m3Product {
  CodedProduct product;
  CodedRows layout;                   // of the rows
  const float* row_scales = nullptr;  // null: the kernel codes the rows itself
  const std::byte* rows = nullptr;    // their codes
};

#if QUIRE_WGMMA

using E4m3Unit = LaneUnit<CodeFormat::kE4m3>;

// d [64 x 8 N] += a [64 x 32] b [32 x 8 N].
#define QUIRE_MULTIPLY_E4M3(shape, registers, tiles, a0, a1, a2, a3, b0)                      \
  asm volatile(                                                                               \
      "{.reg .pred p;\n"                                                                      \
      "setp.eq.b32 p, 0, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned." shape "k32.f32.e4m3.e4m3 {" registers "}, {" a0 ", " a1 \
      ", " a2 ", " a3 "}, " b0 ", p, 1, 1;}\n"                                                \
      : tiles                                                                                 \
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b))
#define QUIRE_TILES_1(d) QUIRE_TILE(d, 0)
#define QUIRE_TILES_2(d) QUIRE_TILE(d, 0), QUIRE_TILE(d, 1)

__device__ __forceinline__ void multiply_e4m3(float (&d)[1][4], const uint4& a, std::uint64_t b) {
  QUIRE_MULTIPLY_E4M3("m64n8", "%0, %1, %2, %3", QUIRE_TILES_1(d), "%4", "%5", "%6", "%7", "%8");
}
__device__ __forceinline__ void multiply_e4m3(float (&d)[2][4], const uint4& a, std::uint64_t b) {
  QUIRE_MULTIPLY_E4M3("m64n16", "%0, %1, %2, %3, %4, %5, %6, %7", QUIRE_TILES_2(d), "%8", "%9",
                      "%10", "%11", "%12");
}
__device__ __forceinline__ void multiply_e4m3(float (&d)[4][4], const uint4& a, std::uint64_t b) {
  QUIRE_MULTIPLY_E4M3("m64n32", QUIRE_REGISTERS_16, QUIRE_TILES_4(d), "%16", "%17", "%18", "%19",
                      "%20");
}
__device__ __forceinline__ void multiply_e4m3(float (&d)[8][4], const uint4& a, std::uint64_t b) {
  QUIRE_MULTIPLY_E4M3("m64n64", QUIRE_REGISTERS_32, QUIRE_TILES_8(d), "%32", "%33", "%34", "%35",
                      "%36");
}
__device__ __forceinline__ void multiply_e4m3(float (&d)[16][4], const uint4& a, std::uint64_t b) {
  QUIRE_MULTIPLY_E4M3("m64n128", QUIRE_REGISTERS_64, QUIRE_TILES_16(d), "%64", "%65", "%66", "%67",
                      "%68");
}
#undef QUIRE_MULTIPLY_E4M3
#undef QUIRE_TILES_1
#undef QUIRE_TILES_2

// Begins the products of a unit with the columns at `rows`, of which a vector has kColumns.
template <int kColumns, int N>
__device__ __forceinline__ void begin_unit(const E4m3Unit& unit, std::uint32_t rows,
                                           float (&sums)[N][4]) {
  constexpr std::uint32_t kVector = kColumns * kVectorBytes;
#pragma unroll
  for (int group = 0; group < kUnitGroups; ++group) {
    multiply_e4m3(
        sums, unit.codes[group],
        describe_columns(rows + static_cast<std::uint32_t>(group) * 2 * kVector, kVector));
  }
}

// Returns the first vector of a tile of 16 outputs; of the last one for tiles behind it.
__device__ __forceinline__ const uint4* tile_of(const E4m3Product& call, std::int64_t tile) {
  const std::int64_t last = tiles_of(call.product.weights.outputs) - 1;
  return reinterpret_cast<const uint4*>(call.product.weights.data) +
         (tile < last ? tile : last) * call.layout.units() * unit_vectors(CodeFormat::kE4m3);
}

// Returns the sum of all slices times its scales.
__device__ __forceinline__ float scaled_sum(const E4m3Product& call, float row_scale,
                                            std::int64_t output, float sum) {
  return scaled<CodeFormat::kE4m3>(output_scales(call.product.weights), output,
                                   __fmul_rn(sum, row_scale));
}

#endif  // QUIRE_WGMMA

// The sums of a slice in shared memory, where the other blocks of a cluster read them: kOutputs of
// each of kRows rows.
template <int kOutputs, int kRows>
struct SliceSums {
  static constexpr int kStride = kOutputs + 4;  // so that a warp writes to different banks
  static constexpr int kBytes = kRows * kStride * 4;

#if QUIRE_WGMMA
  // Lays out the sums of the outputs of a warp, `first` the first of them.
  template <int N>
  __device__ static void lay_out(float* memory, int first, int lane, const float (&sums)[N][4]) {
    static_assert(N * kProductColumns == kRows);
#pragma unroll
    for (int block = 0; block < N; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = first + lane / 4 + i / 2 * 8;
        const int column = block * kProductColumns + lane % 4 * 2 + i % 2;
        memory[column * kStride + output] = sums[block][i];
      }
    }
  }

  // Adds the slices of a share of the outputs in order, and writes them for so many rows. All
  // threads of the block of that rank call it.
  __device__ static void add(const E4m3Product& call, const float* memory, int rank,
                             std::int64_t first_output, std::int64_t first_row, int rows) {
    constexpr int kShare = kOutputs / kCodedSlices;
    for (int i = static_cast<int>(threadIdx.x); i < kShare * rows;
         i += static_cast<int>(blockDim.x)) {
      const int output = rank * kShare + i % kShare, column = i / kShare;
      const std::uint32_t from = shared_address(memory + column * kStride + output);
      float slices[kCodedSlices];
#pragma unroll
      for (int slice = 0; slice < kCodedSlices; ++slice) {
        slices[slice] = read_of_block(slice, from);
      }
      float sum = slices[0];
#pragma unroll
      for (int slice = 1; slice < kCodedSlices; ++slice) {
        sum = __fadd_rn(sum, slices[slice]);
      }
      if (first_output + output < call.product.weights.outputs) {
        const std::int64_t row = first_row + column, to = first_output + output;
        float* const out = call.product.out + row * call.product.weights.outputs + to;
        *out = (call.product.accumulate ? *out : 0.0f) +
               scaled_sum(call, call.row_scales[row], to, sum);
      }
    }
  }
#endif
};

}  // namespace quire::kernels::cuda
