// Products of more rows than a block of coded_wide_rows.cuh takes, where whole outputs fill the
// device. A block has 128 outputs and 128 rows and goes through all slices. Two blocks of
// neighbouring outputs are a cluster, which brings its rows once for both.
//
// A group has two products, of 64 rows each. While the tensor cores compute one, the sums of the
// other meet their scales, and codes of the next group become operands.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/hopper.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/row_images.h"
#include "quire/kernels/cuda/warpgroup.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

// The part that the warps of a block share: barriers, stages of rows, and the warp that fills them.
template <CodeFormat kFormat>
struct SharedRows {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = (kWarps + 4) * kWarpLanes;  // the last warpgroup asks for data
  static constexpr int kBlocks = 16;                          // of kWideColumns rows
  static constexpr int kRows = kBlocks * kWideColumns;
  static constexpr int kPair = 2;     // blocks of a cluster
  static constexpr int kFetched = 4;  // units of weights that are on their way to the L2 cache
  static constexpr int kStageBytes = wide_image_bytes(kFormat, kRows);
  static constexpr int kStages = has_minimum(kFormat) ? 4 : 5;  // units of rows
  static constexpr int kStagesBytes = kStages * kStageBytes;
  static constexpr int kBarrierBytes = kImageAlignment;
  static constexpr int kTotalBytes = kWarps * kWarpLanes * kBlocks * 16;  // of slices so far
  static constexpr int kBytes = kBarrierBytes + kStagesBytes + kTotalBytes;
  static_assert(kWideOutputs == kWarps * kTileOutputs);
#if QUIRE_WGMMA
  struct Barriers {
    PhaseBarrier full[kStages], empty[kStages];
  };

  const CodedProduct& product;
  const std::byte* images;  // of the block's rows
  std::byte* shared;
  std::int64_t out_block, row_block;
  int rank, units;

  __device__ Barriers& barriers() const { return *reinterpret_cast<Barriers*>(shared); }
  __device__ std::byte* stage(int index) const {
    return shared + kBarrierBytes + index % kStages * kStageBytes;
  }
  __device__ float4* totals() const {
    return reinterpret_cast<float4*>(shared + kBarrierBytes + kStagesBytes);
  }

  // Starts the barriers of both blocks.
  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        barriers().full[i].start(1);
        barriers().empty[i].start(kPair * kWarps);
      }
      publish_barriers();
    }
    meet_cluster();
  }

  // Asks for half of a unit of the rows, for both blocks, once both have left the stage. One thread
  // calls it.
  __device__ void ask_rows(int index) const {
    constexpr int kHalfBytes = kStageBytes / kPair;
    PhaseBarrier& full = barriers().full[index % kStages];
    barriers().empty[index % kStages].await(index / kStages + 1);
    full.arrive_expecting(kStageBytes);
    copy_bulk_to_pair(shared_address(stage(index)) + static_cast<std::uint32_t>(rank * kHalfBytes),
                      images + std::int64_t{index} * kStageBytes + rank * kHalfBytes, kHalfBytes,
                      full);
  }
  __device__ void await_rows(int index) const {
    barriers().full[index % kStages].await(index / kStages);
  }
  // Leaves a stage. Whole warps call it.
  __device__ void leave(int index, int lane) const {
    __syncwarp();
    if (lane == 0) {
      barriers().empty[index % kStages].arrive();
      barriers().empty[index % kStages].arrive_at_other();
    }
  }

  // Returns the first unit of the tile of a warp.
  __device__ const uint4* tile_of(int warp) const {
    const std::int64_t last = tiles_of(product.weights.outputs) - 1;
    const std::int64_t tile = out_block * kWarps + warp;
    return reinterpret_cast<const uint4*>(product.weights.data) +
           (tile < last ? tile : last) * units * unit_vectors(kFormat);
  }

  // Asks for rows as stages become free, and for weights, a lane for each tile.
  __device__ void supply(int lane) const {
    constexpr int kUnitBytes = unit_vectors(kFormat) * kVectorBytes;
    const uint4* const from = tile_of(lane % kWarps);
    if (lane < kWarps) {
      fetch_ahead(from, min(kFetched, units) * kUnitBytes);
    }
    begin_kernel();
    for (int index = 0; index < units; ++index) {
      if (lane < kWarps && index + kFetched < units) {
        fetch_ahead(from + std::int64_t{index + kFetched} * unit_vectors(kFormat), kUnitBytes);
      }
      if (lane == 0) {
        ask_rows(index);
      }
      __syncwarp();
    }
  }
#endif
};

template <CodeFormat kFormat, tensor::DType T>
struct ManyRows : SharedRows<kFormat> {
  using Base = SharedRows<kFormat>;
  using Base::kBlocks, Base::kPair, Base::kRows, Base::kStageBytes, Base::kWarps;
  static constexpr int kPartBlocks = kBlocks / 2;  // of a product
#if QUIRE_WGMMA
  using Base::product, Base::out_block, Base::row_block, Base::stage, Base::units;
  using Unit = LaneUnit<kFormat>;
  using Sums = float[kBlocks][4];
  using Part = float[kPartBlocks][4];
  using Operands = std::uint32_t[2][2][4];  // of two steps, in turn

  // Begins the products of a step with rows from kFirst * kWideColumns on, added to `to` where
  // `accumulate`.
  template <int kFirst, int N>
  __device__ __forceinline__ void begin(const std::uint32_t (&a)[2][4], int index, int step,
                                        float (&to)[N][4], int accumulate) const {
    const int group = step / Unit::kHalves;
    const std::uint32_t address =
        shared_address(stage(index)) +
        static_cast<std::uint32_t>(image_place(kRows, kFirst * kWideColumns, group * 4));
    begin_products();
    constexpr std::uint32_t kStep = kRows * kVectorBytes;
    kernels::cuda::multiply<T>(to, a[0], describe_columns(address, kStep), accumulate);
    kernels::cuda::multiply<T>(to, a[1], describe_columns(address + 2 * kStep, kStep), 1);
    end_products();
  }

  // Adds the products of half the rows of a step, times its scales, to the sums.
  template <int kFirst>
  __device__ __forceinline__ void add_scaled(const Unit& unit, int index, int step, int lane,
                                             const Part& part, Sums& sums) const {
    const float scales[2] = {unit.step_head(0, 0, step), unit.step_head(0, 1, step)};
#pragma unroll
    for (int block = 0; block < kPartBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = sums[kFirst + block][i];
        sum = __fmaf_rn(scales[i / 2], part[block][i], sum);
      }
    }
    if constexpr (Unit::kHasMinimum) {
      const auto* const inputs =
          reinterpret_cast<const float*>(stage(index) + kRows * kUnitInputs * 2) + step * kRows +
          kFirst * kWideColumns + lane % 4 * 2;
#pragma unroll
      for (int block = 0; block < kPartBlocks; ++block) {
        const float2 two = *reinterpret_cast<const float2*>(inputs + block * kWideColumns);
        const float both[4] = {two.x, two.y, two.x, two.y};
        add_minimums<kFormat>(sums[kFirst + block], unit, step, both);
      }
    }
  }

  // Adds a slice to the sums of those before it, which lie beside the stages. Leaves the sums of
  // all behind the last slice, else zeros.
  __device__ __forceinline__ void end_slice(int slice, Sums& sums) const {
    float4* totals = Base::totals() + threadIdx.x;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block, totals += kWarps * kWarpLanes) {
      float(&sum)[4] = sums[block];
      if (slice > 0) {
        const float4 before = *totals;
        sum[0] = before.x + sum[0];
        sum[1] = before.y + sum[1];
        sum[2] = before.z + sum[2];
        sum[3] = before.w + sum[3];
      }
      if (slice < kSlices - 1) {
        *totals = {sum[0], sum[1], sum[2], sum[3]};
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
      }
    }
  }

  // Ends the slices that have no unit from `unit` on, and returns the slice of `unit`.
  __device__ __forceinline__ int end_slices(int slice, int unit, Sums& sums) const {
    for (; slice < kSlices && slice_start(units, slice + 1) <= unit; ++slice) {
      end_slice(slice, sums);
    }
    return slice;
  }

  // Writes the sums of all slices.
  __device__ void finish(const Sums& sums, int warp, int lane) const {
    const std::int64_t outputs = product.weights.outputs;
    const std::int64_t output = out_block * kWideOutputs + warp * kTileOutputs + lane / 4;
    const std::int64_t row = row_block * kRows + lane % 4 * 2;
    const std::int64_t rows_left = product.rows - row;
    float* const out = product.out + row * outputs + output;
    constexpr int kAtOnce = 16;  // sums that are added to
    float before[kAtOnce] = {};
#pragma unroll
    for (int first = 0; first < kBlocks * 4; first += kAtOnce) {
      const auto visit = [&](const auto& visitor) {
#pragma unroll
        for (int i = first; i < first + kAtOnce; ++i) {
          const int column = i / 4 * kWideColumns + i % 2, half = i % 4 / 2 * 8;
          if (column < rows_left && output + half < outputs) {
            visitor(i, out + column * outputs + half);
          }
        }
      };
      if (product.accumulate) {
        visit([&](int i, const float* from) { before[i - first] = *from; });
      }
      visit([&](int i, float* to) { *to = before[i - first] + sums[i / 4][i % 4]; });
    }
  }

  // Adds a unit.
  __device__ __forceinline__ void add_unit(const Unit& unit, const uint4& table, int index,
                                           int lane, Sums& sums) const {
    Operands a;
    Part part[2];
    step_operands<T>(unit, 0, table, a[0]);
    begin<0>(a[0], index, 0, part[0], 0);
#pragma unroll
    for (int step = 0; step < Unit::kSteps; ++step) {
      begin<kPartBlocks>(a[step % 2], index, step, part[1], 0);
      await_products<1>();
      settle(part[0]);
      add_scaled<0>(unit, index, step, lane, part[0], sums);
      if (step + 1 < Unit::kSteps) {
        step_operands<T>(unit, step + 1, table, a[(step + 1) % 2]);
        begin<0>(a[(step + 1) % 2], index, step + 1, part[0], 0);
        await_products<1>();
      } else {
        await_products<0>();
      }
      settle(part[1]);
      add_scaled<kPartBlocks>(unit, index, step, lane, part[1], sums);
    }
  }

  // Multiplies the tile of a warp. The first weights are asked for before the rows are there.
  __device__ void multiply(int warp, int lane) const {
    const uint4* const from = Base::tile_of(warp);
    Unit unit, next;
    unit.template load<false>(from, lane);
    const uint4 table = table_of<kFormat>(product.weights);
    begin_kernel();
    Sums sums = {};
    int slice = end_slices(0, 0, sums);
    for (int index = 0; index < units; ++index) {
      const int following = min(index + 1, units - 1);
      next.template load<false>(from + std::int64_t{following} * unit_vectors(kFormat), lane);
      Base::await_rows(index);
      add_unit(unit, table, index, lane, sums);
      Base::leave(index, lane);
      slice = end_slices(slice, index + 1, sums);
      unit = next;
    }
    finish(sums, warp, lane);
  }

  __device__ void run() const {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    Base::start();
    if (warp >= kWarps) {
      keep_registers<24>();
      if (warp == kWarps) {
        Base::supply(lane);
      }
    } else {
      take_registers<240>();
      multiply(warp, lane);
    }
    meet_cluster();  // barriers stay until the other block has arrived at them
  }
#endif
};

// Makes the product of a group with the matrix of its expert.
__device__ __forceinline__ CodedProduct product_of(const CodedProduct& all, CodeFormat format,
                                                   const ExpertRows& group) {
  CodedProduct mine = all;
  mine.weights.data +=
      group.expert * device_code_bytes(format, all.weights.outputs, all.weights.inputs);
  mine.out += group.first * all.weights.outputs;
  mine.rows = group.count;
  return mine;
}

template <CodeFormat kFormat, tensor::DType T, bool kGrouped>
__global__ void __launch_bounds__(ManyRows<kFormat, T>::kThreads, 1)
    many_rows_kernel(const WideProduct wide) {
#if QUIRE_WGMMA
  using Many = ManyRows<kFormat, T>;
  extern __shared__ __align__(kImageAlignment) std::byte shared[];
  const int units = static_cast<int>(units_of(wide.product.weights.inputs));
  const auto row_blocks = static_cast<unsigned>(
      kGrouped ? wide.num_groups : (wide.product.rows + Many::kRows - 1) / Many::kRows);
  const unsigned pair = blockIdx.x / Many::kPair, rank = blockIdx.x % Many::kPair;
  const std::int64_t row_block = pair % row_blocks;
  const auto run = [&](const CodedProduct& product, std::int64_t block_of_product) {
    Many{{.product = product,
          .images = wide.images + row_block * units * Many::kStageBytes,
          .shared = shared,
          .out_block = std::int64_t{pair / row_blocks} * Many::kPair + rank,
          .row_block = block_of_product,
          .rank = static_cast<int>(rank),
          .units = units}}
        .run();
  };
  if constexpr (kGrouped) {
    await_previous();  // which made the groups
    const ExpertRows group = wide.groups[row_block];
    if (group.count > 0) {
      run(product_of(wide.product, kFormat, group), 0);
    }
  } else {
    run(wide.product, row_block);
  }
#endif
}

template <CodeFormat kFormat, tensor::DType T, bool kGrouped = false>
cudaError_t launch_many(const WideProduct& wide, cudaStream_t stream) {
  using Many = ManyRows<kFormat, T>;
  const auto kernel = many_rows_kernel<kFormat, T, kGrouped>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Many::kBytes);
      error != cudaSuccess) {
    return error;
  }
  const CodedProduct& product = wide.product;
  const std::int64_t row_blocks =
      kGrouped ? wide.num_groups : (product.rows + Many::kRows - 1) / Many::kRows;
  constexpr std::int64_t kPairOutputs = std::int64_t{Many::kPair} * kWideOutputs;
  const std::int64_t pairs = (product.weights.outputs + kPairOutputs - 1) / kPairOutputs;
  return launch_early(kernel,
                      {.blocks = static_cast<unsigned>(row_blocks * pairs * Many::kPair),
                       .threads = Many::kThreads,
                       .shared_bytes = Many::kBytes,
                       .cluster = Many::kPair},
                      stream, wide);
}

}  // namespace
}  // namespace quire::kernels::cuda
