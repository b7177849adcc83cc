// Products of many rows with quantised weights on Hopper, as coded_wide_rows.cu launches them. A
// block has 128 outputs and up to 128 rows, whose images bulk copies bring to shared memory. Each
// warp widens a tile of codes in registers, as for few rows, and a warpgroup multiplies four tiles
// with all rows. Groups meet their scales in fp32.
//
// The slices of an output are eight blocks of a cluster where there are few tiles. Elsewhere one
// block goes through all of them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_many_rows.cuh"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/coded_wide_rows.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/hopper.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/row_images.h"
#include "quire/kernels/cuda/warpgroup.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kColumns = kWideColumns;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kOutputs = kWideOutputs;
static_assert(kOutputs == kWarps * kTileOutputs);
constexpr int kStages = 4;                // units of rows in shared memory
constexpr int kLead = 2;                  // of those, units that are asked for ahead
constexpr int kSumStride = kOutputs + 4;  // so that the sums of a warp lie in different banks

// Adds the products of a step, times its scales, to the sums. The rows of the unit are at `at`,
// and behind them their sums, which minimums are multiplied with.
template <CodeFormat kFormat, int kBlocks, class Unit>
__device__ __forceinline__ void add_scaled(const Unit& unit, int step, const std::byte* at,
                                           int lane, const float (&part)[kBlocks][4],
                                           float (&sums)[kBlocks][4]) {
  constexpr int kRows = kBlocks * kColumns;
  const float scales[2] = {unit.step_head(0, 0, step), unit.step_head(0, 1, step)};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[block][i] = __fmaf_rn(scales[i / 2], part[block][i], sums[block][i]);
    }
  }
  if constexpr (Unit::kHasMinimum) {
    const auto* const inputs =
        reinterpret_cast<const float*>(at + kRows * kUnitInputs * 2) + step * kRows + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float2 two = *reinterpret_cast<const float2*>(inputs + block * kColumns);
      const float both[4] = {two.x, two.y, two.x, two.y};
      add_minimums<kFormat>(sums[block], unit, step, both);
    }
  }
}

// kBlocks: of kColumns rows. kSplit: the block has one slice, else all of them.
template <CodeFormat kFormat, DType T, int kBlocks, bool kSplit>
struct WideRows {
  static constexpr int kRows = kBlocks * kColumns;
  static constexpr int kStageBytes = wide_image_bytes(kFormat, kRows);
  static constexpr int kStagesBytes = kStages * kStageBytes;
  static constexpr int kSumBytes = kRows * kSumStride * 4;     // of a slice, for the cluster
  static constexpr int kTotalBytes = kThreads * kBlocks * 16;  // of slices so far
  static constexpr int kBarrierBytes = kImageAlignment;
  static constexpr int kBytes = kBarrierBytes + (!kSplit ? kStagesBytes + kTotalBytes
                                                 : kStagesBytes > kSumBytes ? kStagesBytes
                                                                            : kSumBytes);
  static constexpr int kBlocksAtOnce = kBlocks <= 8 ? 2 : 1;  // of a multiprocessor
  static constexpr int kAhead = code_bits(kFormat) == 8 || kBlocks == 8 ? 1 : 2;  // units of a tile
#if QUIRE_WGMMA
  using Unit = LaneUnit<kFormat>;
  using Sums = float[kBlocks][4];

  struct Shared {
    PhaseBarrier full[kStages], empty[kStages];
  };

  const CodedProduct& product;
  const std::byte* images;
  std::byte* shared;
  int units = 0, begin = 0, end = 0;

  __device__ Shared& barriers() const { return *reinterpret_cast<Shared*>(shared); }
  __device__ std::byte* stage(int index) const {
    return shared + kBarrierBytes + index % kStages * kStageBytes;
  }

  // Asks for a unit of the rows, counted from the first of the block, once its stage is free. One
  // thread calls it.
  __device__ void ask_rows(int index) const {
    if (index >= end - begin) {
      return;
    }
    const std::int64_t block = kSplit ? blockIdx.x / kSlices : blockIdx.x;
    PhaseBarrier& full = barriers().full[index % kStages];
    barriers().empty[index % kStages].await(index / kStages + 1);
    full.arrive_expecting(kStageBytes);
    copy_bulk(shared_address(stage(index)), images + (block * units + begin + index) * kStageBytes,
              kStageBytes, full);
  }

  // Adds a unit. Codes of the next step become operands while the tensor cores multiply.
  __device__ __forceinline__ void add_unit(const Unit& unit, const uint4& table,
                                           const std::byte* at, int lane, Sums& sums) const {
    constexpr int kStep = kRows * kVectorBytes;
    const std::uint32_t address = shared_address(at);
    std::uint32_t a[2][2][4];
    step_operands<T>(unit, 0, table, a[0]);
    Sums part;
#pragma unroll
    for (int step = 0; step < Unit::kSteps; ++step) {
      const int group = step / Unit::kHalves;
      const auto place = static_cast<std::uint32_t>(image_place(kRows, 0, group * 4));
      const std::uint64_t b0 = describe_columns(address + place, kStep);
      const std::uint64_t b1 = describe_columns(address + place + 2 * kStep, kStep);
      begin_products();
      kernels::cuda::multiply<T>(part, a[step % 2][0], b0, 0);
      kernels::cuda::multiply<T>(part, a[step % 2][1], b1, 1);
      end_products();
      if (step + 1 < Unit::kSteps) {
        step_operands<T>(unit, step + 1, table, a[(step + 1) % 2]);
      }
      await_products<0>();
      settle(part);
      add_scaled<kFormat>(unit, step, at, lane, part, sums);
    }
  }

  // Adds a slice to the sums of those before it, which lie beside the stages. Leaves the sums of
  // all behind the last slice, else zeros.
  __device__ void end_slice(int slice, Sums& sums) const {
    auto* totals = reinterpret_cast<float4*>(shared + kBarrierBytes + kStagesBytes) + threadIdx.x;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block, totals += kThreads) {
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

  // Writes the sum of a row at its place `to`.
  __device__ __forceinline__ void write(float* to, float sum) const {
    *to = (product.accumulate ? *to : 0.0f) + sum;
  }

  // Writes the sums of all slices.
  __device__ void finish(const Sums& sums, int warp, int lane) const {
    const std::int64_t outputs = product.weights.outputs;
    const std::int64_t output =
        std::int64_t{blockIdx.y} * kOutputs + warp * kTileOutputs + lane / 4;
    const std::int64_t row = std::int64_t{blockIdx.x} * kRows + lane % 4 * 2;
    const std::int64_t rows_left = product.rows - row;
    float* const to = product.out + row * outputs + output;
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      const int column = i / 4 * kColumns + i % 2, half = i % 4 / 2 * 8;
      if (column < rows_left && output + half < outputs) {
        write(to + column * outputs + half, sums[i / 4][i % 4]);
      }
    }
  }

  // Lays the sums of this slice out for the cluster.
  __device__ void lay_out(const Sums& sums, int warp, int lane) const {
    auto* const mine = reinterpret_cast<float*>(shared + kBarrierBytes);
    __syncthreads();  // nobody multiplies any more
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = warp * kTileOutputs + lane / 4 + i / 2 * 8;
        mine[(block * kColumns + lane % 4 * 2 + i % 2) * kSumStride + output] = sums[block][i];
      }
    }
  }

  // Adds the slices of an eighth of the rows in order, and writes them.
  __device__ void add_slices() const {
    const int slice = static_cast<int>(blockIdx.x) % kSlices;
    const std::int64_t first = std::int64_t{blockIdx.x / kSlices} * kRows;
    const auto* const mine = reinterpret_cast<const float*>(shared + kBarrierBytes);
    for (int i = static_cast<int>(threadIdx.x); i < kBlocks * kOutputs; i += kThreads) {
      const int column = slice * kBlocks + i / kOutputs, output = i % kOutputs;
      const std::uint32_t from = shared_address(mine + column * kSumStride + output);
      float sum = read_of_block(0, from);
#pragma unroll
      for (int other = 1; other < kSlices; ++other) {
        sum += read_of_block(other, from);
      }
      const std::int64_t row = first + column;
      const std::int64_t to = std::int64_t{blockIdx.y} * kOutputs + output;
      if (row < product.rows && to < product.weights.outputs) {
        write(product.out + row * product.weights.outputs + to, sum);
      }
    }
  }

  // Multiplies the tile of a warp. The first weights are asked for before the rows are there.
  __device__ void multiply(int warp, int lane) const {
    const std::int64_t last = tiles_of(product.weights.outputs) - 1;
    const std::int64_t tile = std::int64_t{blockIdx.y} * kWarps + warp;
    const auto* const from = reinterpret_cast<const uint4*>(product.weights.data) +
                             (tile < last ? tile : last) * units * unit_vectors(kFormat);
    Unit ahead[kAhead];
    const auto ask = [&](Unit& to, int unit) {
      if (unit < end) {
        to.template load<false>(from + std::int64_t{unit} * unit_vectors(kFormat), lane);
      }
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ask(ahead[i], begin + i);
    }
    const uint4 table = table_of<kFormat>(product.weights);
    begin_kernel();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kLead; ++i) {
        ask_rows(i);
      }
    }
    Sums sums = {};
    int slice = 0;
    for (int unit = begin;; ++unit) {
      if constexpr (!kSplit) {
        for (; slice < kSlices && slice_start(units, slice + 1) <= unit; ++slice) {
          end_slice(slice, sums);
        }
      }
      if (unit == end) {
        break;
      }
      const Unit now = ahead[0];
#pragma unroll
      for (int i = 1; i < kAhead; ++i) {
        ahead[i - 1] = ahead[i];
      }
      ask(ahead[kAhead - 1], unit + kAhead);
      const int index = unit - begin;
      if (threadIdx.x == 0) {
        ask_rows(index + kLead);
      }
      __syncwarp();
      barriers().full[index % kStages].await(index / kStages);
      add_unit(now, table, stage(index), lane, sums);
      __syncwarp();  // all lanes have read the sums of the stage
      if (lane == 0) {
        barriers().empty[index % kStages].arrive();
      }
    }
    if constexpr (kSplit) {
      lay_out(sums, warp, lane);
    } else {
      finish(sums, warp, lane);
    }
  }

  __device__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        barriers().full[i].start(1);
        barriers().empty[i].start(kWarps);
      }
      publish_barriers();
    }
    __syncthreads();
    multiply(warp, lane);
    if constexpr (kSplit) {
      meet_cluster();
      add_slices();
      meet_cluster();  // memory stays until all have read it
    }
  }
#endif
};

template <CodeFormat kFormat, DType T, int kBlocks, bool kSplit>
__global__ void __launch_bounds__(kThreads, WideRows<kFormat, T, kBlocks, kSplit>::kBlocksAtOnce)
    wide_rows_kernel(const WideProduct wide) {
#if QUIRE_WGMMA
  extern __shared__ __align__(kImageAlignment) std::byte shared[];
  const int units = static_cast<int>(units_of(wide.product.weights.inputs));
  const int slice = static_cast<int>(blockIdx.x) % kSlices;
  WideRows<kFormat, T, kBlocks, kSplit>{.product = wide.product,
                                        .images = wide.images,
                                        .shared = shared,
                                        .units = units,
                                        .begin = kSplit ? slice_start(units, slice) : 0,
                                        .end = kSplit ? slice_start(units, slice + 1) : units}
      .run();
#endif
}

template <CodeFormat kFormat, DType T, int kBlocks, bool kSplit>
cudaError_t launch_wide(const WideProduct& wide, cudaStream_t stream) {
  using Wide = WideRows<kFormat, T, kBlocks, kSplit>;
  const auto kernel = wide_rows_kernel<kFormat, T, kBlocks, kSplit>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Wide::kBytes);
      error != cudaSuccess) {
    return error;
  }
  const CodedProduct& product = wide.product;
  const auto row_blocks = static_cast<unsigned>((product.rows + Wide::kRows - 1) / Wide::kRows);
  const dim3 blocks(row_blocks * (kSplit ? kSlices : 1),
                    static_cast<unsigned>((product.weights.outputs + kOutputs - 1) / kOutputs));
  return launch_early(kernel,
                      {.blocks = blocks,
                       .threads = kThreads,
                       .shared_bytes = Wide::kBytes,
                       .cluster = kSplit ? kSlices : 1},
                      stream, wide);
}

template <DType T, int kBlocks, bool kSplit>
cudaError_t launch_for_format(const WideProduct& wide, cudaStream_t stream) {
  return launch_for_groups(wide.product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_wide<kFormat, T, kBlocks, kSplit>(wide, stream);
  });
}

// Launches the instance for so many rows to a block.
template <DType T>
cudaError_t launch_for_rows(const WideProduct& wide, cudaStream_t stream) {
  if (wide.groups != nullptr) {
    return launch_for_groups(wide.product.weights.format, [&]<CodeFormat kFormat>() {
      return launch_many<kFormat, T, true>(wide, stream);
    });
  }
  if (wide.block_rows == 32) {
    return launch_for_format<T, 4, true>(wide, stream);
  }
  if (wide.block_rows == 64) {
    return wide.split ? launch_for_format<T, 8, true>(wide, stream)
                      : launch_for_format<T, 8, false>(wide, stream);
  }
  if (wide.split) {
    return launch_for_format<T, 16, true>(wide, stream);
  }
  return launch_for_groups(wide.product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_many<kFormat, T>(wide, stream);
  });
}

}  // namespace
}  // namespace quire::kernels::cuda
