// Products of many rows with weights of e4m3, for e4m3_products.cu. A block takes tiles of 128
// outputs and 128 or 256 rows, one after the other, and goes through all slices of each. Two blocks
// of neighbouring outputs are a cluster, which brings its rows once for both. A warp of each brings
// them, also for the next tile. Each slice has a unit at least. Weights pass through registers,
// results through shared memory.
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

// The part that the warps of a block share: its tiles, barriers, stages of rows, and the warp that
// fills these. kParts: of 128 rows, each a product.
template <int kParts>
struct ManyE4m3Tiles {
  static constexpr int kRows = kParts * 128;
  static constexpr int kBlocks = kRows / kProductColumns / kParts;
  static constexpr int kOutputs = 128;
  static constexpr int kWarps = 8;
  static constexpr int kMultipliers = kWarps * kWarpLanes;        // threads
  static constexpr int kThreads = kMultipliers + 4 * kWarpLanes;  // the last warpgroup brings rows
  static constexpr int kPair = 2;                                 // blocks of a cluster
  static constexpr int kStages = kParts == 1 ? 6 : 3;             // units of rows
  static constexpr int kUnitBytes = kUnitInputs * kRows;
  static constexpr int kBarrierBytes = 128;
  static constexpr int kStagesBytes = kStages * kUnitBytes;
  // Sums of slices so far, and then results. The last four of eight rows of results lie apart, so
  // that lanes write to different banks.
  static constexpr int kPad = 16;
  static constexpr int kTotalBytes = (kRows * kOutputs + kRows / 8 * kPad) * 4;
  static constexpr int kBytes = kBarrierBytes + kStagesBytes + kTotalBytes;

#if QUIRE_WGMMA
  struct Barriers {
    PhaseBarrier full[kStages], empty[kStages];
  };
  using Sums = float[kParts][kBlocks][4];
  struct Place {
    std::int64_t out_block, row_block;
  };

  const E4m3Product& call;
  std::byte* shared;
  int row_blocks, pairs;  // of tiles in all
  int rank, warp, lane;

  [[nodiscard]] __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(shared);
  }
  [[nodiscard]] __device__ std::byte* stage(int index) const {
    return shared + kBarrierBytes + index % kStages * kUnitBytes;
  }
  [[nodiscard]] __device__ float* totals() const {
    return reinterpret_cast<float*>(shared + kBarrierBytes + kStagesBytes);
  }
  [[nodiscard]] __device__ int units() const { return call.layout.units(); }
  [[nodiscard]] __device__ static int first_pair() { return static_cast<int>(blockIdx.x) / kPair; }
  [[nodiscard]] __device__ static int stride() { return static_cast<int>(gridDim.x) / kPair; }
  // Returns the tile of this block of a pair. Pairs that run at once share outputs.
  [[nodiscard]] __device__ Place place(int pair) const {
    return {std::int64_t{pair / row_blocks} * kPair + rank, pair % row_blocks};
  }

  // Brings half of each unit of the rows to both blocks, once both have left its stage. One thread
  // runs it.
  __device__ void supply() const {
    constexpr int kHalfBytes = kUnitBytes / kPair;
    int step = 0;
    for (int pair = first_pair(); pair < pairs; pair += stride()) {
      const std::byte* const from =
          call.rows + place(pair).row_block * units() * kUnitBytes + rank * kHalfBytes;
      for (int index = 0; index < units(); ++index, ++step) {
        PhaseBarrier& full = barriers().full[step % kStages];
        barriers().empty[step % kStages].await(step / kStages + 1);
        full.arrive_expecting(kUnitBytes);
        copy_bulk_to_pair(
            shared_address(stage(step)) + static_cast<std::uint32_t>(rank * kHalfBytes),
            from + std::int64_t{index} * kUnitBytes, kHalfBytes, full);
      }
    }
  }

  // Leaves a stage in both blocks. Whole warps call it.
  __device__ void leave(int step) const {
    if (lane == 0) {
      barriers().empty[step % kStages].arrive();
      barriers().empty[step % kStages].arrive_at_other();
    }
  }
#endif
};

// The sums of a block: of slices so far, and then the results, which leave through shared memory.
template <int kParts>
struct ManyE4m3Sums : ManyE4m3Tiles<kParts> {
  using Base = ManyE4m3Tiles<kParts>;
  using Base::kBlocks, Base::kMultipliers, Base::kOutputs, Base::kPad, Base::kRows;
#if QUIRE_WGMMA
  using Base::call, Base::lane, Base::totals, Base::warp;
  using Sums = typename Base::Sums;
  using Place = typename Base::Place;

  // Waits for the other warps that multiply.
  __device__ __forceinline__ static void meet_multipliers() {
    asm volatile("barrier.sync 1, %0;\n" ::"n"(kMultipliers) : "memory");
  }

  // Adds a slice to the sums of those before it, which lie in shared memory. Leaves the sums of all
  // behind the last slice, else zeros.
  __device__ __forceinline__ void end_slice(int slice, Sums& sums) const {
    if (slice == 0) {
      // The results of the tile before lay there.
      asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
      meet_multipliers();
    }
    auto* at = reinterpret_cast<float4*>(totals()) + threadIdx.x;
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (float(&sum)[4] : part) {
        if (slice > 0) {
          const float4 before = *at;
          sum[0] = __fadd_rn(before.x, sum[0]);
          sum[1] = __fadd_rn(before.y, sum[1]);
          sum[2] = __fadd_rn(before.z, sum[2]);
          sum[3] = __fadd_rn(before.w, sum[3]);
        }
        if (slice < kCodedSlices - 1) {
          *at = {sum[0], sum[1], sum[2], sum[3]};
          sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        }
        at += kMultipliers;
      }
    }
  }

  // Returns the floats before a row of results.
  [[nodiscard]] __device__ static constexpr int result_row(int row) {
    return row * kOutputs + (row / 4 + 1) / 2 * kPad;
  }

  // Writes the results of a row out, or adds them. `outputs` is a multiple of 4.
  __device__ void write_row(float* to, int row, std::int64_t outputs) const {
    const std::uint32_t from = shared_address(totals() + result_row(row));
    const auto bytes = static_cast<std::uint32_t>((outputs < kOutputs ? outputs : kOutputs) * 4);
    if (call.product.accumulate) {
      asm volatile(
          "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(to),
          "r"(from), "r"(bytes)
          : "memory");
    } else {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to),
                   "r"(from), "r"(bytes)
                   : "memory");
    }
  }

  // Begins to write the sums of all slices out, times their scales.
  __device__ void finish(const Place& place, const Sums& sums) const {
    meet_multipliers();  // all have read the sums of slices
    const std::int64_t outputs = call.product.weights.outputs;
    const int column = warp * kTileOutputs + lane / 4;
    const std::int64_t output = place.out_block * kOutputs + column;
    const float* const scales = output_scales(call.product.weights);
    const float of_output[2] = {output < outputs ? scales[output] : 0.0f,
                                output + 8 < outputs ? scales[output + 8] : 0.0f};
    // Lanes of odd t write the other half first: so a warp writes to all banks.
    const int swap = lane % 2;
#pragma unroll
    for (int i = 0; i < kParts * kBlocks; ++i) {
      const float(&block)[4] = sums[i / kBlocks][i % kBlocks];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = i * kProductColumns + lane % 4 * 2 + odd;
        const std::int64_t of_all = place.row_block * kRows + row;
        const float scale = of_all < call.product.rows ? call.row_scales[of_all] : 0.0f;
        float* const to = totals() + result_row(row) + column;
        const float low = __fmul_rn(__fmul_rn(block[odd], scale), of_output[0]);
        const float high = __fmul_rn(__fmul_rn(block[2 + odd], scale), of_output[1]);
        to[swap * 8] = swap == 0 ? low : high;
        to[8 - swap * 8] = swap == 0 ? high : low;
      }
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    meet_multipliers();
    const auto row = static_cast<int>(threadIdx.x);
    const std::int64_t of_all = place.row_block * kRows + row;
    if (const std::int64_t left = outputs - place.out_block * kOutputs;
        row < kRows && left > 0 && of_all < call.product.rows) {
      write_row(call.product.out + of_all * outputs + place.out_block * kOutputs, row, left);
    }
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
  }
#endif
};

template <int kParts>
struct ManyE4m3Rows : ManyE4m3Sums<kParts> {
  using Base = ManyE4m3Sums<kParts>;
  using Base::kPair, Base::kRows, Base::kStages, Base::kWarps;
  static constexpr int kHeld = kParts == 1 ? 4 : 2;  // units of weights in registers
#if QUIRE_WGMMA
  using Base::barriers, Base::call, Base::end_slice, Base::finish, Base::first_pair, Base::lane;
  using Base::leave, Base::pairs, Base::place, Base::stage, Base::stride, Base::supply, Base::units;
  using Base::warp;
  using Sums = typename Base::Sums;

  __device__ __forceinline__ void begin(const E4m3Unit& unit, int step, Sums& sums) const {
    barriers().full[step % kStages].await(step / kStages);
    const std::uint32_t at = shared_address(stage(step));
    constexpr std::uint32_t kPart = kRows / kParts * kVectorBytes;
    begin_products();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      begin_unit<kRows>(unit, at + static_cast<std::uint32_t>(part) * kPart, sums[part]);
    }
    end_products();
  }

  // Waits for all products.
  __device__ __forceinline__ static void await_all(Sums& sums) {
    await_products<0>();
#pragma unroll
    for (auto& part : sums) {
      settle(part);
    }
  }
  // The weights of a warp, tile after tile.
  struct Weights {
    int pair, index;
    const uint4* at;
  };
  __device__ __forceinline__ void ask(Weights& weights, E4m3Unit& to) const {
    if (weights.pair >= pairs) {
      return;
    }
    to.load<false>(weights.at, lane);
    weights.at += unit_vectors(CodeFormat::kE4m3);
    if (++weights.index == units()) {
      weights.index = 0;
      weights.pair += stride();
      weights.at = tile_of(call, place(weights.pair).out_block * kWarps + warp);
    }
  }

  // Multiplies the tiles of a warp.
  __device__ void multiply() const {
    Weights weights{first_pair(), 0, tile_of(call, place(first_pair()).out_block * kWarps + warp)};
    E4m3Unit held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld - 1; ++i) {
      ask(weights, held[i]);
    }
    begin_kernel();
    Sums sums = {};
    int step = 0;
    for (int pair = first_pair(); pair < pairs; pair += stride()) {
#pragma unroll 1
      for (int slice = 0; slice < kCodedSlices; ++slice) {
        const int first = coded_slice_start(units(), slice);
        const int last = coded_slice_start(units(), slice + 1);
#pragma unroll 1
        for (int index = first; index < last; index += kHeld) {
#pragma unroll
          for (int i = 0; i < kHeld; ++i) {
            if (index + i < last) {
              begin(held[i], step, sums);
              await_products<1>();  // those of the unit before
              if (index + i > first) {
                leave(step - 1);
              }
              ask(weights, held[(i + kHeld - 1) % kHeld]);
              ++step;
            }
          }
        }
        await_all(sums);
        leave(step - 1);
        rotate(held, (last - first) % kHeld);
        end_slice(slice, sums);
      }
      finish(place(pair), sums);
#pragma unroll
      for (auto& part : sums) {
#pragma unroll
        for (float(&sum)[4] : part) {
          sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        }
      }
    }
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
  }

  // Moves the unit at `turns` to the first place, and those behind it after it.
  __device__ static void rotate(E4m3Unit (&held)[kHeld], int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      const E4m3Unit first = held[0];
#pragma unroll
      for (int i = 1; i < kHeld; ++i) {
        held[i - 1] = held[i];
      }
      held[kHeld - 1] = first;
    }
  }

  __device__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        barriers().full[i].start(1);
        barriers().empty[i].start(kPair * kWarps);
      }
      publish_barriers();
    }
    meet_cluster();
    if (warp >= kWarps) {
      keep_registers<24>();
      begin_kernel();
      if (warp == kWarps && lane == 0) {
        supply();
      }
      __syncwarp();
    } else {
      take_registers<240>();
      multiply();
    }
    meet_cluster();  // barriers stay until the other block has arrived at them
  }
#endif
};

template <int kParts>
__global__ void __launch_bounds__(ManyE4m3Rows<kParts>::kThreads, 1)
    many_e4m3_rows_kernel(const E4m3Product call) {
#if QUIRE_WGMMA
  using Many = ManyE4m3Rows<kParts>;
  extern __shared__ __align__(128) std::byte shared[];
  constexpr std::int64_t kPairOutputs = std::int64_t{Many::kPair} * Many::kOutputs;
  const auto row_blocks = static_cast<int>(call.layout.blocks(call.product.rows));
  const auto of_outputs =
      static_cast<int>((call.product.weights.outputs + kPairOutputs - 1) / kPairOutputs);
  Many{{{.call = call,
         .shared = shared,
         .row_blocks = row_blocks,
         .pairs = row_blocks * of_outputs,
         .rank = static_cast<int>(blockIdx.x) % Many::kPair,
         .warp = static_cast<int>(threadIdx.x) / kWarpLanes,
         .lane = static_cast<int>(threadIdx.x) % kWarpLanes}}}
      .run();
#endif
}

}  // namespace
}  // namespace quire::kernels::cuda
