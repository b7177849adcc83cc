// Hopper's copy engine (TMA), the barriers that it completes on, and barriers of a part of a CTA
// (PTX ISA: cp.async.bulk.tensor, mbarrier, barrier.cta). Only for sm_90a: includers ask
// QUIRE_WGMMA.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "quire/attention/cuda/wgmma.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

// A barrier in shared memory. Its phases have numbers 0, 1, ...; waiting takes their parity, and a
// wait for the phase before the first one ends at once.
class PhaseBarrier {
 public:
  // Initialises the barrier. One thread calls it before anybody uses the barrier:
  // publish_barriers() and a barrier of the CTA follow.
  __device__ void start(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address()), "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address()) : "memory");
  }
  // Arrives at the barrier in the same place of the other CTA of a pair.
  __device__ void arrive_at_other() {
    asm volatile(
        "{.reg .b32 other, rank;\n"
        "mov.u32 rank, %%cluster_ctarank;\n"
        "xor.b32 rank, rank, 1;\n"
        "mapa.shared::cluster.u32 other, %0, rank;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [other];}\n" ::"r"(address())
        : "memory");
  }
  // Arrives; the phase also waits for `bytes` of the copy engine.
  __device__ void arrive_expecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void await(int phase) const {
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;}\n"
          : "=r"(done)
          : "r"(address()), "r"(phase & 1)
          : "memory");
    }
  }
  [[nodiscard]] __device__ std::uint32_t address() const { return shared_address(&state_); }

 private:
  std::uint64_t state_;
};

// Makes started barriers visible to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ __forceinline__ void fetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
// Copies a box of a map of five dimensions to `to`. With `kToPair` it copies to both CTAs of a
// pair, and for the barriers of both.
template <bool kToPair>
__device__ __forceinline__ void copy_box(std::uint16_t* to, const CUtensorMap& map,
                                         const int (&at)[5], const PhaseBarrier& done) {
  if constexpr (kToPair) {
    constexpr std::uint16_t kBoth = 3;
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;\n" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(done.address()),
        "h"(kBoth)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5, %6}], [%7];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(done.address())
      : "memory");
}

// Copies `bytes` in one piece, a multiple of 16 at multiples of 16.
template <bool kToPair>
__device__ __forceinline__ void copy_piece(std::uint16_t* to, const std::uint16_t* from, int bytes,
                                           const PhaseBarrier& done) {
  if constexpr (kToPair) {
    constexpr std::uint16_t kBoth = 3;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;\n" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(done.address()), "h"(kBoth)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];\n" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(done.address())
      : "memory");
}

// Copies 16 bytes. The calling thread copies them itself and waits for them by await_copies().
__device__ __forceinline__ void copy_16(std::uint16_t* to, const std::uint16_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// Tells the compiler that all lanes of a warp have this number. Numbers that are made of it,
// descriptors of products above all, stay in uniform registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// Waits for all threads of a cluster that have not left.
__device__ __forceinline__ void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// Waits at barrier `id` of 1..15 for `threads` threads of the CTA, whole warps.
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// Counts as meeting without waiting.
__device__ __forceinline__ void pass(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Registers per thread of a warpgroup from here on.
template <int kRegisters>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace quire::attention::cuda

#endif
