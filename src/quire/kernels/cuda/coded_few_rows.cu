// Products of up to 16 rows at a time with quantised weights. A warp has a slice of the inputs of
// one or two tiles of outputs, and its units pass through registers some loads ahead. The warps of
// a block are the slices of the same tiles.
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = kSlices * kWarpLanes;
constexpr int kColumns = 8;  // rows of activations of a tensor core's product

// kTiles: of outputs, which share a look at the activations. kBlocks: of kColumns rows.
template <CodeFormat kFormat, DType T, int kTiles, int kBlocks>
struct FewRows {
  // Units of a tile in registers: one is multiplied, the others are on their way.
  static constexpr int kUnits = kTiles * kBlocks > 1 || code_bits(kFormat) == 8 ? 2 : 3;
  static constexpr int kOutputs = kTiles * kTileOutputs;
  using Unit = LaneUnit<kFormat>;

  // The sums of a warp, as its lanes hold them: tile, block, lane, 4 sums.
  using Sums = float[kTiles][kBlocks][4];
  // The activations of a unit: inputs 8t to 8t + 7 of every group, row g of each block.
  using Values = uint4[kBlocks][kUnitGroups];
  using Rows = const Half* [kBlocks];

  // Points at inputs 8t to 8t + 7 of row g of each block. Lanes behind the last row take that one:
  // their sums are not written.
  __device__ static void find_rows(const CodedProduct& product, int lane, Rows& rows) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const std::int64_t row = (std::int64_t{blockIdx.y} * kBlocks + block) * kColumns + lane / 4;
      const std::int64_t there = row < product.rows ? row : product.rows - 1;
      rows[block] = product.x + there * product.weights.inputs + lane % 4 * kLaneInputs;
    }
  }

  // Loads the activations of a unit; zeros behind the last input.
  __device__ __forceinline__ static void load_rows(const Rows& rows, int unit, int inputs, int lane,
                                                   Values& values) {
    const bool whole = (unit + 1) * kUnitInputs <= inputs;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int group = 0; group < kUnitGroups; ++group) {
        const int input = unit * kUnitInputs + group * kGroupInputs;
        values[block][group] = whole || input + lane % 4 * kLaneInputs < inputs
                                   ? *reinterpret_cast<const uint4*>(rows[block] + input)
                                   : uint4{};
      }
    }
  }

  __device__ __forceinline__ static void add_unit(const Unit (&units)[kTiles], const Values& values,
                                                  Sums& sums) {
#pragma unroll
    for (int group = 0; group < kUnitGroups; ++group) {
      [[maybe_unused]] float inputs[kBlocks][4] = {};
      if constexpr (Unit::kHasMinimum) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          sum_inputs<T>(inputs[block], values[block][group]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        std::uint32_t a[2][4];
        units[tile].template operands<T>(group, a);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          add_group<kFormat, T>(sums[tile][block], a, units[tile], group, values[block][group]);
          if constexpr (Unit::kHasMinimum) {
            add_minimums<kFormat>(sums[tile][block], units[tile], group, inputs[block]);
          }
        }
      }
    }
  }

  // Adds the slices in order and writes the outputs of the block.
  __device__ static void finish(const CodedProduct& product, const Sums& sums) {
    const float* const scales = output_scales(product.weights);
    __shared__ float all[kSlices][kTiles][kBlocks][kWarpLanes][4];
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int slice = static_cast<int>(threadIdx.x) / kWarpLanes;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float(&mine)[4] = sums[tile][block];
        *reinterpret_cast<float4*>(all[slice][tile][block][lane]) = {mine[0], mine[1], mine[2],
                                                                     mine[3]};
      }
    }
    __syncthreads();
    constexpr int kRows = kBlocks * kColumns;
    for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kRows; i += kThreads) {
      const int output = i % kOutputs, column = i / kOutputs;
      const int tile = output / kTileOutputs, in_tile = output % kTileOutputs;
      const int block = column / kColumns, in_block = column % kColumns;
      const int from = in_tile % 8 * 4 + in_block / 2, place = in_tile / 8 * 2 + in_block % 2;
      float sum = all[0][tile][block][from][place];
#pragma unroll
      for (int other = 1; other < kSlices; ++other) {
        sum += all[other][tile][block][from][place];
      }
      const std::int64_t to = std::int64_t{blockIdx.x} * kOutputs + output;
      const std::int64_t row = std::int64_t{blockIdx.y} * kRows + column;
      if (to < product.weights.outputs && row < product.rows) {
        float* const out = product.out + row * product.weights.outputs + to;
        *out = (product.accumulate ? *out : 0.0f) + scaled<kFormat>(scales, to, sum);
      }
    }
  }

  __device__ static void run(const CodedProduct& product) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int slice = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int units = static_cast<int>(units_of(product.weights.inputs));
    const std::int64_t last_tile = tiles_of(product.weights.outputs) - 1;
    const uint4* from[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::int64_t index = std::int64_t{blockIdx.x} * kTiles + tile;
      from[tile] = reinterpret_cast<const uint4*>(product.weights.data) +
                   (index < last_tile ? index : last_tile) * units * unit_vectors(kFormat);
    }
    const int end = slice_start(units, slice + 1);
    int unit = slice_start(units, slice);
    Unit held[kUnits][kTiles];
    const auto ask = [&](Unit(&to)[kTiles], int which) {
      if (which < end) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          to[tile].template load<true>(from[tile] + std::int64_t{which} * unit_vectors(kFormat),
                                       lane);
        }
      }
    };
    // The first weights are asked for before the kernel that makes x is done.
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      ask(held[i], unit + i);
    }
    begin_kernel();
    Rows rows;
    find_rows(product, lane, rows);
    const int inputs = static_cast<int>(product.weights.inputs);
    Sums sums = {};
    while (unit < end) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (unit < end) {
          Values values;
          load_rows(rows, unit, inputs, lane, values);
          add_unit(held[i], values, sums);
          ask(held[i], unit + kUnits);
          ++unit;
        }
      }
    }
    finish(product, sums);
  }
};

template <CodeFormat kFormat, DType T, int kTiles, int kBlocks>
__global__ void __launch_bounds__(kThreads,
                                  kTiles* kBlocks == 1 && kFormat == CodeFormat::kQ4 ? 3 : 2)
    few_rows_kernel(const CodedProduct product) {
  FewRows<kFormat, T, kTiles, kBlocks>::run(product);
}

template <CodeFormat kFormat, DType T, int kTiles, int kBlocks>
cudaError_t launch_tiles(const CodedProduct& product, cudaStream_t stream) {
  constexpr std::int64_t kOutputs = std::int64_t{kTiles} * kTileOutputs;
  constexpr std::int64_t kRows = std::int64_t{kBlocks} * kColumns;
  const dim3 blocks(static_cast<unsigned>((product.weights.outputs + kOutputs - 1) / kOutputs),
                    static_cast<unsigned>((product.rows + kRows - 1) / kRows));
  return launch_early(few_rows_kernel<kFormat, T, kTiles, kBlocks>, {blocks, kThreads}, stream,
                      product);
}

// Returns whether blocks of two tiles are enough for all multiprocessors of the current device.
bool pairs_fill_device(std::int64_t outputs) {
  int device = 0, processors = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) ==
             cudaSuccess &&
         outputs >= std::int64_t{2} * kTileOutputs * processors;
}

// Launches pairs of tiles where they measured faster on an H200. Two tiles share a look at the
// activations. Units of q8g32, and of q4m32 with its minimums, take too many registers for it.
template <CodeFormat kFormat, DType T, int kBlocks>
cudaError_t launch(const CodedProduct& product, bool pairs, cudaStream_t stream) {
  constexpr bool kFits = kFormat == CodeFormat::kQ4 || kFormat == CodeFormat::kE4m3 ||
                         (kFormat == CodeFormat::kQ4Minimum && kBlocks == 1);
  if constexpr (kFits) {
    if (pairs) {
      return launch_tiles<kFormat, T, 2, kBlocks>(product, stream);
    }
  }
  return launch_tiles<kFormat, T, 1, kBlocks>(product, stream);
}

}  // namespace

cudaError_t multiply_few_rows(const CodedProduct& product, cudaStream_t stream) {
  if (product.rows == 0) {
    return cudaSuccess;
  }
  const bool pairs = pairs_fill_device(product.weights.outputs);
  return launch_for_codes(product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_for_dtype(product.dtype, [&]<DType T>() {
      return product.rows <= kColumns ? launch<kFormat, T, 1>(product, pairs, stream)
                                      : launch<kFormat, T, 2>(product, pairs, stream);
    });
  });
}

}  // namespace quire::kernels::cuda
