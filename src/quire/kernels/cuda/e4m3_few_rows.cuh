// Products of up to 16 rows with weights of e4m3, for e4m3_products.cu. The warps of a warpgroup
// have the same 16 outputs, each a slice of their inputs. All see the columns of every slice and
// keep those of their own. So weights pass through registers once, in one stream for each warp, and
// slices are added within a warpgroup. A block stays for all tiles that are its own, so that loads
// go on where a tile ends.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/e4m3_rows.cuh"
#include "quire/kernels/cuda/e4m3_rows.h"
#include "quire/kernels/cuda/e4m3_warpgroup.cuh"
#include "quire/kernels/cuda/hopper.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

// kRowsOfBlock: rows; with 2 the kernel codes them itself, and all steps stay in shared memory.
template <int kRowsOfBlock>
struct FewE4m3Rows {
  static constexpr int kRows = kRowsOfBlock;
  static constexpr bool kCodesRows = kRows == 2;
  static constexpr int kColumns = kCodedSlices * kRows;
  static constexpr int kBlocks = kColumns / kProductColumns;
  static constexpr int kGroups = kCodesRows ? 4 : 3;  // warpgroups
  static constexpr int kWarps = kCodedSlices;         // of a warpgroup
  static constexpr int kGroupThreads = kWarps * kWarpLanes;
  // A warp behind them brings the rows.
  static constexpr int kThreads = kGroups * kGroupThreads + (kCodesRows ? 0 : kWarpLanes);
  static constexpr int kHeld = kRows == 16 ? 3 : 4;  // units of weights in registers
  static constexpr int kStepBytes = kUnitInputs * kColumns;
  static constexpr int kStages = 8;  // steps of rows in shared memory
  static constexpr int kBarrierBytes = 128;
  static constexpr int kSums = kCodedSlices * kRows * kTileOutputs;  // of a tile
  static constexpr int kSumBytes = kGroups * 2 * kSums * 4;
  static_assert(kStages * 2 * 8 <= kBarrierBytes);

  // Returns the bytes of shared memory.
  static constexpr int bytes(int steps) {
    return kBarrierBytes + kSumBytes + (kCodesRows ? steps : kStages) * kStepBytes;
  }

#if QUIRE_WGMMA
  struct Barriers {
    PhaseBarrier full[kStages], empty[kStages];
  };

  const E4m3Product& call;
  std::byte* shared;
  int warpgroup, slice, lane;
  int tiles, steps, rounds;
  int begin, count;  // units of the slice

  [[nodiscard]] __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(shared);
  }
  [[nodiscard]] __device__ std::byte* stage(int index) const {
    return shared + kBarrierBytes + kSumBytes + index * kStepBytes;
  }
  [[nodiscard]] __device__ int tile(int round) const {
    return (round * kGroups + warpgroup) * static_cast<int>(gridDim.x) +
           static_cast<int>(blockIdx.x);
  }

  // The units of a warp, tile after tile.
  struct Supply {
    int round = 0, step = 0;
    const uint4* at = nullptr;
  };
  // Asks for the next unit. The first one of a tile comes to the first place of those held. Where a
  // slice or the matrix ends, it asks again for a unit that the caches have. Rows are zeros there,
  // or nothing is written.
  __device__ __forceinline__ void ask(Supply& supply, E4m3Unit& to) const {
    to.load<false>(supply.at, lane);
    if (++supply.step < count) {
      supply.at += unit_vectors(CodeFormat::kE4m3);
    } else if (supply.step >= steps && supply.step % kHeld == 0) {
      begin_tile(supply, supply.round + 1);
    }
  }
  __device__ __forceinline__ void begin_tile(Supply& supply, int round) const {
    supply.round = round;
    supply.step = 0;
    supply.at = tile_of(call, tile(round)) + std::int64_t{begin} * unit_vectors(CodeFormat::kE4m3);
  }

  // Brings the steps of the rows, tile after tile, once all have left their stages. One thread runs
  // it.
  __device__ void bring_rows() const {
    const std::byte* const rows = call.rows + std::int64_t{blockIdx.y} * steps * kStepBytes;
    for (int index = 0; index < rounds * steps; ++index) {
      PhaseBarrier& full = barriers().full[index % kStages];
      barriers().empty[index % kStages].await(index / kStages + 1);
      full.arrive_expecting(kStepBytes);
      copy_bulk(shared_address(stage(index % kStages)),
                rows + std::int64_t{index % steps} * kStepBytes, kStepBytes, full);
    }
  }

  // Codes all rows. All threads of the block call it.
  template <tensor::DType T>
  __device__ void code_own_rows(float (&scales)[kRows]) const {
    constexpr int kLanes = kGroupInputs / kLaneInputs;
    const auto vectors = static_cast<int>(call.layout.inputs / kLaneInputs);
    for (int row = 0; row < kRows && row < call.product.rows; ++row) {
      const auto* const x =
          reinterpret_cast<const uint4*>(call.product.x + row * call.layout.inputs);
      const RowScale scale = scale_of_row<T>(x, vectors);
      scales[row] = scale.scale;
      for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
        const uint4 values = x[i];
        const int unit = i / (kLanes * kUnitGroups), group = i / kLanes % kUnitGroups;
        int of = kCodedSlices - 1;
        while (coded_slice_start(call.layout.units(), of) > unit) {
          --of;
        }
        const int step = unit - coded_slice_start(call.layout.units(), of);
        std::byte* const to = stage(0) + call.layout.place(row, of, step, group) + i % kLanes * 4;
        *reinterpret_cast<std::uint32_t*>(to) = scale.codes<T>(values.x, values.y);
        *reinterpret_cast<std::uint32_t*>(to + kColumns * kVectorBytes) =
            scale.codes<T>(values.z, values.w);
      }
    }
  }

  // Codes all rows where no other kernel did.
  __device__ void prepare_rows(float (&scales)[kRows]) const {
    // Units that slices lack are zeros, since products may not meet a NaN there.
    if (call.layout.inputs % (kCodedSlices * kUnitInputs) != 0) {
      for (int i = static_cast<int>(threadIdx.x); i < steps * kStepBytes / kVectorBytes;
           i += kThreads) {
        reinterpret_cast<uint4*>(stage(0))[i] = {};
      }
      __syncthreads();
    }
    begin_kernel();
    if (call.product.dtype == tensor::DType::kBFloat16) {
      code_own_rows<tensor::DType::kBFloat16>(scales);
    } else {
      code_own_rows<tensor::DType::kFloat16>(scales);
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");  // products read the codes
    __syncthreads();
  }

  // Waits for the other warps of the warpgroup.
  __device__ void meet_group() const {
    asm volatile("barrier.sync %0, %1;\n" ::"r"(warpgroup + 1), "n"(kGroupThreads) : "memory");
  }

  // Adds the slices of a tile in order and writes its outputs. Tiles have memory in turn, so that
  // one wait is enough.
  __device__ __forceinline__ void finish(int round, const float (&sums)[kBlocks][4],
                                         const float (&scales)[kCodesRows ? kRows : 1]) const {
    auto* const all =
        reinterpret_cast<float*>(shared + kBarrierBytes) + (warpgroup * 2 + round % 2) * kSums;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = block * kProductColumns + lane % 4 * 2 + i % 2;
        if (column / kRows == slice) {
          all[column * kTileOutputs + lane / 4 + i / 2 * 8] = sums[block][i];
        }
      }
    }
    meet_group();
    const std::int64_t first = std::int64_t{blockIdx.y} * kRows;
    const std::int64_t left = call.product.rows - first;
    const int rows = static_cast<int>(left < kRows ? left : kRows);
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < kTileOutputs * rows;
         i += kGroupThreads) {
      const int output = i % kTileOutputs, row = i / kTileOutputs;
      float sum = all[i];
#pragma unroll
      for (int other = 1; other < kCodedSlices; ++other) {
        sum = __fadd_rn(sum, all[other * kRows * kTileOutputs + i]);
      }
      const std::int64_t to = std::int64_t{tile(round)} * kTileOutputs + output;
      if (to < call.product.weights.outputs) {
        float* const out = call.product.out + (first + row) * call.product.weights.outputs + to;
        float scale;
        if constexpr (kCodesRows) {
          scale = row == 0 ? scales[0] : scales[kRows - 1];
        } else {
          scale = call.row_scales[first + row];
        }
        *out = (call.product.accumulate ? *out : 0.0f) + scaled_sum(call, scale, to, sum);
      }
    }
  }

  // Adds a unit.
  __device__ __forceinline__ void add_unit(const E4m3Unit& unit, int index, int step,
                                           float (&sums)[kBlocks][4]) const {
    const int at = kCodesRows ? step : index % kStages;
    if constexpr (!kCodesRows) {
      barriers().full[at].await(index / kStages);
    }
    begin_products();
    begin_unit<kColumns>(unit, shared_address(stage(at)), sums);
    end_products();
    await_products<0>();
    settle(sums);
    if constexpr (!kCodesRows) {
      if (lane == 0) {
        barriers().empty[at].arrive();
      }
    }
  }

  __device__ void run() const {
    if (threadIdx.x == 0 && !kCodesRows) {
      for (int i = 0; i < kStages; ++i) {
        barriers().full[i].start(1);
        barriers().empty[i].start(kGroups * kWarps);
      }
      publish_barriers();
    }
    // The first weights are asked for before the kernel that makes the rows is done.
    Supply supply;
    E4m3Unit held[kHeld];
    if (warpgroup < kGroups) {
      begin_tile(supply, 0);
#pragma unroll
      for (E4m3Unit& unit : held) {
        ask(supply, unit);
      }
    }
    [[maybe_unused]] float scales[kCodesRows ? kRows : 1] = {};
    if constexpr (kCodesRows) {
      prepare_rows(scales);
    } else {
      __syncthreads();
      begin_kernel();
      if (warpgroup == kGroups) {
        if (lane == 0) {
          bring_rows();
        }
        return;
      }
    }
    int index = 0;
    for (int round = 0; round < rounds; ++round) {
      float sums[kBlocks][4] = {};
#pragma unroll 1
      for (int step = 0; step < steps; step += kHeld) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          if (step + i < steps) {
            add_unit(held[i], index++, step + i, sums);
          }
          ask(supply, held[i]);
        }
      }
      finish(round, sums, scales);
    }
  }
#endif
};

template <int kRows>
__global__ void __launch_bounds__(FewE4m3Rows<kRows>::kThreads, 1)
    few_e4m3_rows_kernel(const E4m3Product call) {
#if QUIRE_WGMMA
  using Few = FewE4m3Rows<kRows>;
  extern __shared__ __align__(128) std::byte shared[];
  const int slice = static_cast<int>(threadIdx.x) / kWarpLanes % Few::kWarps;
  const int units = call.layout.units(), begin = coded_slice_start(units, slice);
  const auto tiles = static_cast<int>(tiles_of(call.product.weights.outputs));
  const int at_once = Few::kGroups * static_cast<int>(gridDim.x);
  Few{.call = call,
      .shared = shared,
      .warpgroup = static_cast<int>(threadIdx.x) / Few::kGroupThreads,
      .slice = slice,
      .lane = static_cast<int>(threadIdx.x) % kWarpLanes,
      .tiles = tiles,
      .steps = call.layout.steps(),
      .rounds = (tiles + at_once - 1) / at_once,
      .begin = begin,
      .count = coded_slice_start(units, slice + 1) - begin}
      .run();
#endif
}

}  // namespace
}  // namespace quire::kernels::cuda
