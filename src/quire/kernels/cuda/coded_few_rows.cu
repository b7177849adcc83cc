// Products of up to 16 rows at a time with quantised weights. A warp has a slice of the inputs of
// one or two tiles of outputs, and its units pass through registers some loads ahead. The warps of
// a block are the slices of the same tiles. A block stays for all tiles that are its own, so that
// loads go on where a tile ends.
#include <cuda_runtime.h>

#include <algorithm>
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

// kTiles: of outputs, which share a look at the activations. kBlocks: of kColumns rows. kUnits: of
// a tile in registers; one is multiplied, the others are on their way.
template <CodeFormat kFormat, DType T, int kTiles, int kBlocks, int kUnits>
struct FewRows {
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

  // The units of a warp's slice, group of tiles after group, as the block goes through them.
  struct Supply {
    const uint4* first;      // unit of the slice, of the first tile
    std::int64_t tile_size;  // vectors
    int count;               // units of the slice
    int tiles, group;
    int left = 0;
    const uint4* at[kTiles] = {};

    // Points at the group's tiles. A tile behind the last one is read as that one.
    __device__ __forceinline__ void begin_group() {
      left = count;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        at[tile] = first + min(group * kTiles + tile, tiles - 1) * tile_size;
      }
    }
    // Asks for the next unit, if there is one.
    __device__ __forceinline__ void ask(int lane, Unit (&to)[kTiles]) {
      if (group * kTiles >= tiles) {
        return;
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        to[tile].template load<true>(at[tile], lane);
        at[tile] += unit_vectors(kFormat);
      }
      if (--left == 0) {
        group += static_cast<int>(gridDim.x);
        begin_group();
      }
    }
  };

  // Adds the slices in order and writes the outputs of a group. Groups have memory in turn, so that
  // one wait for all warps is enough.
  __device__ __forceinline__ static void finish(const CodedProduct& product, int group, int turn,
                                                const Sums& sums) {
    const float* const scales = output_scales(product.weights);
    __shared__ float memory[2][kSlices][kTiles][kBlocks][kWarpLanes][4];
    auto& all = memory[turn % 2];
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
    const std::int64_t first_row = std::int64_t{blockIdx.y} * kRows;
    const int rows = static_cast<int>(min(product.rows - first_row, std::int64_t{kRows}));
    // Few rows are the work of one warp, another one each time.
    const int rotated = static_cast<int>(threadIdx.x) + (kSlices - turn % kSlices) * kWarpLanes;
    for (int i = rotated % kThreads; i < kOutputs * rows; i += kThreads) {
      const int output = i % kOutputs, column = i / kOutputs;
      const int tile = output / kTileOutputs, in_tile = output % kTileOutputs;
      const int block = column / kColumns, in_block = column % kColumns;
      const int from = in_tile % 8 * 4 + in_block / 2, place = in_tile / 8 * 2 + in_block % 2;
      float sum = all[0][tile][block][from][place];
#pragma unroll
      for (int other = 1; other < kSlices; ++other) {
        sum += all[other][tile][block][from][place];
      }
      const std::int64_t to = std::int64_t{group} * kOutputs + output;
      if (to < product.weights.outputs) {
        float* const out = product.out + (first_row + column) * product.weights.outputs + to;
        *out = (product.accumulate ? *out : 0.0f) +
               scaled<kFormat>(scales, to, scaled_row<kFormat>(product, first_row + column, sum));
      }
    }
  }

  __device__ static void run(const CodedProduct& product) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int slice = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int units = static_cast<int>(units_of(product.weights.inputs));
    const int begin = slice_start(units, slice), count = slice_start(units, slice + 1) - begin;
    const int tiles = static_cast<int>(tiles_of(product.weights.outputs));
    Supply supply{.first = reinterpret_cast<const uint4*>(product.weights.data) +
                           std::int64_t{begin} * unit_vectors(kFormat),
                  .tile_size = std::int64_t{units} * unit_vectors(kFormat),
                  .count = count,
                  .tiles = tiles,
                  .group = count == 0 ? tiles : static_cast<int>(blockIdx.x)};
    supply.begin_group();
    Unit held[kUnits][kTiles];
    // The first weights are asked for before the kernel that makes x is done.
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      supply.ask(lane, held[i]);
    }
    begin_kernel();
    Rows rows;
    find_rows(product, lane, rows);
    const int inputs = static_cast<int>(product.weights.inputs);
    Sums sums = {};
    int group = static_cast<int>(blockIdx.x), turn = 0, left = count;
    while (group * kTiles < tiles) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (group * kTiles >= tiles) {
          break;
        }
        if (left > 0) {
          Values values;
          load_rows(rows, begin + count - left, inputs, lane, values);
          add_unit(held[i], values, sums);
          supply.ask(lane, held[i]);
        }
        if (--left <= 0) {
          finish(product, group, turn, sums);
#pragma unroll
          for (auto& tile : sums) {
#pragma unroll
            for (auto& block : tile) {
              block[0] = block[1] = block[2] = block[3] = 0.0f;
            }
          }
          group += static_cast<int>(gridDim.x);
          left = count;
          ++turn;
        }
      }
    }
  }
};

// kAtOnce: blocks on a multiprocessor.
template <CodeFormat kFormat, DType T, int kTiles, int kBlocks, int kUnits, int kAtOnce>
__global__ void __launch_bounds__(kThreads, kAtOnce) few_rows_kernel(const CodedProduct product) {
  FewRows<kFormat, T, kTiles, kBlocks, kUnits>::run(product);
}

// Launches as many blocks as run at once. They go through all tiles, and ask for the weights of a
// tile while they multiply the one before.
template <CodeFormat kFormat, DType T, int kTiles, int kBlocks, int kUnits, int kAtOnce>
cudaError_t launch_tiles(const CodedProduct& product, int processors, cudaStream_t stream) {
  constexpr std::int64_t kOutputs = std::int64_t{kTiles} * kTileOutputs;
  constexpr std::int64_t kRows = std::int64_t{kBlocks} * kColumns;
  const std::int64_t groups = (product.weights.outputs + kOutputs - 1) / kOutputs;
  const dim3 blocks(static_cast<unsigned>(std::min(groups, std::int64_t{kAtOnce} * processors)),
                    static_cast<unsigned>((product.rows + kRows - 1) / kRows));
  return launch_early(few_rows_kernel<kFormat, T, kTiles, kBlocks, kUnits, kAtOnce>,
                      {blocks, kThreads}, stream, product);
}

// Launches what measured fastest on an H200 for up to eight rows. Two tiles share a look at the
// activations. Where two blocks of a tile each are enough for a multiprocessor, more units of them
// are on their way. Elsewhere more blocks at once are worth more.
template <CodeFormat kFormat, DType T>
cudaError_t launch_eight(const CodedProduct& product, int processors, cudaStream_t stream) {
  const bool few_tiles = tiles_of(product.weights.outputs) <= std::int64_t{2} * processors;
  if constexpr (kFormat == CodeFormat::kQ4) {
    return launch_tiles<kFormat, T, 1, 1, 2, 3>(product, processors, stream);
  } else if constexpr (kFormat == CodeFormat::kQ4Minimum) {
    return few_tiles ? launch_tiles<kFormat, T, 1, 1, 3, 2>(product, processors, stream)
                     : launch_tiles<kFormat, T, 2, 1, 2, 2>(product, processors, stream);
  } else {
    return few_tiles ? launch_tiles<kFormat, T, 1, 1, 2, 2>(product, processors, stream)
                     : launch_tiles<kFormat, T, 1, 1, 1, 3>(product, processors, stream);
  }
}

// Launches for up to sixteen rows at a time. Units of q8g32 and q4m32 take too many registers for
// two tiles.
template <CodeFormat kFormat, DType T>
cudaError_t launch_sixteen(const CodedProduct& product, int processors, cudaStream_t stream) {
  if constexpr (kFormat == CodeFormat::kQ4 || kFormat == CodeFormat::kE4m3) {
    if (product.weights.outputs >= std::int64_t{2} * kTileOutputs * processors) {
      return launch_tiles<kFormat, T, 2, 2, 2, 2>(product, processors, stream);
    }
  }
  return launch_tiles<kFormat, T, 1, 2, 2, 2>(product, processors, stream);
}

}  // namespace

cudaError_t multiply_few_rows(const CodedProduct& product, cudaStream_t stream) {
  if (product.rows == 0) {
    return cudaSuccess;
  }
  int processors = 0;
  if (const cudaError_t error = count_processors(processors); error != cudaSuccess) {
    return error;
  }
  return launch_for_codes(product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_for_dtype(product.dtype, [&]<DType T>() {
      return product.rows <= kColumns ? launch_eight<kFormat, T>(product, processors, stream)
                                      : launch_sixteen<kFormat, T>(product, processors, stream);
    });
  });
}

}  // namespace quire::kernels::cuda
