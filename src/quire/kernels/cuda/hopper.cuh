// Instructions of Hopper that several kernels use (PTX ISA: wgmma, mbarrier, cp.async.bulk,
// barrier.cluster). They order products of a warpgroup, and are barriers of the copy engine and of
// clusters. All but shared_address() are for sm_90a: includers ask QUIRE_WGMMA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QUIRE_WGMMA 1
#else
#define QUIRE_WGMMA 0
#endif

namespace quire::kernels::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

#if QUIRE_WGMMA

// Names and operands of the registers that hold 4, 8 or 16 tiles of a lane.
#define QUIRE_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_REGISTERS_32                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_REGISTERS_64                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_TILE(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define QUIRE_FOUR_TILES(d, i) \
  QUIRE_TILE(d, i), QUIRE_TILE(d, i + 1), QUIRE_TILE(d, i + 2), QUIRE_TILE(d, i + 3)
#define QUIRE_TILES_4(d) QUIRE_FOUR_TILES(d, 0)
#define QUIRE_TILES_8(d) QUIRE_TILES_4(d), QUIRE_FOUR_TILES(d, 4)
#define QUIRE_TILES_16(d) QUIRE_TILES_8(d), QUIRE_FOUR_TILES(d, 8), QUIRE_FOUR_TILES(d, 12)

// Orders writes of registers before products. Call it before the first product that reads registers
// written since the last wait.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
// Makes a group of the products issued since the last one.
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most `kLeft` groups are under way. Their results are read behind settle().
template <int kLeft>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kLeft) : "memory");
}
// Keeps the compiler from moving uses of these registers across it.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N][4]) {
#pragma unroll
  for (auto& tile : d) {
    asm volatile("" : "+f"(tile[0]), "+f"(tile[1]), "+f"(tile[2]), "+f"(tile[3])::"memory");
  }
}

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
// Copies `bytes` in one piece, a multiple of 16 at multiples of 16, to shared memory.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, int bytes,
                                          const PhaseBarrier& done) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(done.address())
      : "memory");
}

// Does so for both CTAs of a pair, to the same place in each, and for the same barrier of each.
__device__ __forceinline__ void copy_bulk_to_pair(std::uint32_t to, const void* from, int bytes,
                                                  const PhaseBarrier& done) {
  constexpr std::uint16_t kBoth = 3;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(done.address()), "h"(kBoth)
      : "memory");
}

// Brings `bytes`, a multiple of 16 at a multiple of 16, to the L2 cache. Nothing waits for them.
__device__ __forceinline__ void fetch_ahead(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
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

// Waits for all threads of a cluster that have not left.
__device__ __forceinline__ void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// Returns a float of the shared memory of another block of the cluster.
__device__ __forceinline__ float read_of_block(int block, std::uint32_t address) {
  float value;
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];}\n"
      : "=f"(value)
      : "r"(address), "r"(block)
      : "memory");
  return value;
}

#endif

}  // namespace quire::kernels::cuda
