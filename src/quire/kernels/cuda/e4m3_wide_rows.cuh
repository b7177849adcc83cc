// Products of up to 128 rows at a time with weights of e4m3, for e4m3_products.cu. A block has 128
// outputs and a slice of the inputs; the slices of the same outputs are the blocks of a cluster.
// Units of rows pass through shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/e4m3_rows.h"
#include "quire/kernels/cuda/e4m3_warpgroup.cuh"
#include "quire/kernels/cuda/hopper.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"

namespace quire::kernels::cuda {
namespace {

// kBlocks: of kProductColumns rows.
template <int kBlocks>
struct WideE4m3Rows {
  static constexpr int kRows = kBlocks * kProductColumns;
  static constexpr int kOutputs = 128;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kStages = 4;  // units of rows in shared memory
  static constexpr int kLead = 3;    // of those, units that are asked for ahead
  static constexpr int kUnitBytes = kUnitInputs * kRows;
  static constexpr int kHeld = kBlocks == 16 ? 2 : 3;  // units of weights in registers
  static constexpr int kBarrierBytes = 128;
  using Slice = SliceSums<kOutputs, kRows>;
  static constexpr int kStagesBytes = kStages * kUnitBytes;
  static constexpr int kBytes =
      kBarrierBytes + (kStagesBytes > Slice::kBytes ? kStagesBytes : Slice::kBytes);

#if QUIRE_WGMMA
  struct Barriers {
    PhaseBarrier full[kStages], empty[kStages];
  };

  const E4m3Product& call;
  std::byte* shared;
  int slice, warp, lane;
  int begin, count;  // units of the slice

  [[nodiscard]] __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(shared);
  }
  [[nodiscard]] __device__ std::byte* stage(int index) const {
    return shared + kBarrierBytes + index % kStages * kUnitBytes;
  }
  [[nodiscard]] __device__ static std::int64_t row_block() { return blockIdx.x / kCodedSlices; }

  // Asks for a unit of the rows, counted from the first of the slice, once its stage is free. One
  // thread calls it.
  __device__ void ask_rows(int index) const {
    if (index >= count) {
      return;
    }
    PhaseBarrier& full = barriers().full[index % kStages];
    barriers().empty[index % kStages].await(index / kStages + 1);
    full.arrive_expecting(kUnitBytes);
    copy_bulk(shared_address(stage(index)),
              call.rows + (row_block() * call.layout.units() + begin + index) * kUnitBytes,
              kUnitBytes, full);
  }

  // Adds a unit. Its weights stay in registers until the products are done.
  __device__ __forceinline__ void add_unit(const E4m3Unit& unit, int index,
                                           float (&sums)[kBlocks][4]) const {
    if (threadIdx.x == 0) {
      ask_rows(index + kLead);
    }
    __syncwarp();
    barriers().full[index % kStages].await(index / kStages);
    begin_products();
    begin_unit<kRows>(unit, shared_address(stage(index)), sums);
    end_products();
    await_products<0>();
    settle(sums);
    if (lane == 0) {
      barriers().empty[index % kStages].arrive();
    }
  }

  __device__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        barriers().full[i].start(1);
        barriers().empty[i].start(kWarps);
      }
      publish_barriers();
    }
    __syncthreads();
    const uint4* from = tile_of(call, std::int64_t{blockIdx.y} * kWarps + warp) +
                        std::int64_t{begin} * unit_vectors(CodeFormat::kE4m3);
    E4m3Unit held[kHeld];
    // The first weights are asked for before the kernel that makes the rows is done.
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i < count) {
        held[i].load<false>(from + i * unit_vectors(CodeFormat::kE4m3), lane);
      }
    }
    begin_kernel();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kLead; ++i) {
        ask_rows(i);
      }
    }
    float sums[kBlocks][4] = {};
    for (int index = 0; index < count; index += kHeld) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (index + i < count) {
          add_unit(held[i], index + i, sums);
          if (index + i + kHeld < count) {
            held[i].load<false>(
                from + std::int64_t{index + i + kHeld} * unit_vectors(CodeFormat::kE4m3), lane);
          }
        }
      }
    }
    __syncthreads();  // nobody multiplies any more
    auto* const mine = reinterpret_cast<float*>(shared + kBarrierBytes);
    Slice::lay_out(mine, warp * kTileOutputs, lane, sums);
    meet_cluster();
    const std::int64_t first = row_block() * kRows, left = call.product.rows - first;
    Slice::add(call, mine, slice, std::int64_t{blockIdx.y} * kOutputs, first,
               static_cast<int>(left < kRows ? left : kRows));
    meet_cluster();  // memory stays until all have read it
  }
#endif
};

template <int kBlocks>
__global__ void __launch_bounds__(WideE4m3Rows<kBlocks>::kThreads, 2)
    wide_e4m3_rows_kernel(const E4m3Product call) {
#if QUIRE_WGMMA
  extern __shared__ __align__(128) std::byte shared[];
  const int slice = static_cast<int>(blockIdx.x) % kCodedSlices;
  const int begin = coded_slice_start(call.layout.units(), slice);
  WideE4m3Rows<kBlocks>{.call = call,
                        .shared = shared,
                        .slice = slice,
                        .warp = static_cast<int>(threadIdx.x) / kWarpLanes,
                        .lane = static_cast<int>(threadIdx.x) % kWarpLanes,
                        .begin = begin,
                        .count = coded_slice_start(call.layout.units(), slice + 1) - begin}
      .run();
#endif
}

}  // namespace
}  // namespace quire::kernels::cuda
