// Hopper's copy engine (TMA), and barriers of a part of a CTA (PTX ISA: cp.async.bulk.tensor,
// barrier.cta). Only for sm_90a: includers ask
// QUIRE_WGMMA.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "quire/attention/cuda/wgmma.cuh"
#include "quire/kernels/cuda/hopper.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

using kernels::cuda::copy_bulk;
using kernels::cuda::keep_registers;
using kernels::cuda::meet_cluster;
using kernels::cuda::PhaseBarrier;
using kernels::cuda::publish_barriers;
using kernels::cuda::take_registers;

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
  copy_bulk(shared_address(to), from, bytes, done);
}

// Copies 16 bytes, or 8. The calling thread copies them itself and waits for them by
// await_copies().
__device__ __forceinline__ void copy_16(std::uint16_t* to, const std::uint16_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copy_8(std::uint16_t* to, const std::uint16_t* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// Tells the compiler that all lanes of a warp have this number. Numbers that are made of it,
// descriptors of products above all, stay in uniform registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// Waits at barrier `id` of 1..15 for `threads` threads of the CTA, whole warps.
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// Counts as meeting without waiting.
__device__ __forceinline__ void pass(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace quire::attention::cuda

#endif
