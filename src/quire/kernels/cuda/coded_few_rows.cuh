// The kernel of up to 16 rows at a time with quantised weights, which products of one matrix and of
// groups share. A warp has a slice of the inputs of one or two tiles of outputs, and its units pass
// through registers some loads ahead. The warps of a block are the slices of the same tiles. A
// block stays for all tiles that are its own, so that loads go on where a tile ends.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

inline constexpr int kFewRowsThreads = kSlices * kWarpLanes;
inline constexpr int kFewColumns = 8;  // rows of activations of a tensor core's product

// The rows of a block of threads.
struct RowBlock {
  std::int64_t index = 0;                // of blocks of kBlocks * kFewColumns rows of a product
  const std::int32_t* row_of = nullptr;  // [rows] of the product, where they lie in x; null: there
};

// kTiles: of outputs, which share a look at the activations. kBlocks: of kFewColumns rows. kUnits:
// of a tile in registers; one is multiplied, the others are on their way.
template <CodeFormat kFormat, tensor::DType T, int kTiles, int kBlocks, int kUnits>
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
  __device__ static void find_rows(const CodedProduct& product, const RowBlock& of, int lane,
                                   Rows& rows) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const std::int64_t row = (of.index * kBlocks + block) * kFewColumns + lane / 4;
      const std::int64_t there = row < product.rows ? row : product.rows - 1;
      const std::int64_t from = of.row_of == nullptr ? there : of.row_of[there];
      rows[block] = product.x + from * product.weights.inputs + lane % 4 * kLaneInputs;
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

  __device__ __forceinline__ static void add_unit(const Unit (&units)[kTiles], const uint4& table,
                                                  const Values& values, Sums& sums) {
#pragma unroll
    for (int step = 0; step < Unit::kSteps; ++step) {
      const int group = step / Unit::kHalves;
      [[maybe_unused]] float inputs[kBlocks][4] = {};
      if constexpr (Unit::kHasMinimum) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          sum_inputs<T>(inputs[block], values[block][group],
                        Unit::kHalves == 1 || is_in_half(step % Unit::kHalves));
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        std::uint32_t a[2][4];
        step_operands<T>(units[tile], step, table, a);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          add_step<kFormat, T>(sums[tile][block], a, units[tile], step, values[block][group]);
          if constexpr (Unit::kHasMinimum) {
            add_minimums<kFormat>(sums[tile][block], units[tile], step, inputs[block]);
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
  __device__ __forceinline__ static void finish(const CodedProduct& product, const RowBlock& of,
                                                int group, int turn, const Sums& sums) {
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
    constexpr int kRows = kBlocks * kFewColumns;
    const std::int64_t first_row = of.index * kRows;
    const int rows = static_cast<int>(min(product.rows - first_row, std::int64_t{kRows}));
    // Few rows are the work of one warp, another one each time.
    const int rotated = static_cast<int>(threadIdx.x) + (kSlices - turn % kSlices) * kWarpLanes;
    for (int i = rotated % kFewRowsThreads; i < kOutputs * rows; i += kFewRowsThreads) {
      const int output = i % kOutputs, column = i / kOutputs;
      const int tile = output / kTileOutputs, in_tile = output % kTileOutputs;
      const int block = column / kFewColumns, in_block = column % kFewColumns;
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

  __device__ static void run(const CodedProduct& product, const RowBlock& of) {
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
    const uint4 table = table_of<kFormat>(product.weights);
    Unit held[kUnits][kTiles];
    // The first weights are asked for before the kernel that makes x is done.
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      supply.ask(lane, held[i]);
    }
    begin_kernel();
    Rows rows;
    find_rows(product, of, lane, rows);
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
          add_unit(held[i], table, values, sums);
          supply.ask(lane, held[i]);
        }
        if (--left <= 0) {
          finish(product, of, group, turn, sums);
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

}  // namespace quire::kernels::cuda
