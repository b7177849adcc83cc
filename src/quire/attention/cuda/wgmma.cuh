// Products of a warpgroup on Hopper (PTX ISA, wgmma.mma_async): 64 rows at once, the right operand
// read from shared memory. Only for sm_90a: includers ask QUIRE_WGMMA.
#pragma once

#include <cstdint>

#include "quire/attention/cuda/fragments.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QUIRE_WGMMA 1
#else
#define QUIRE_WGMMA 0
#endif

#if QUIRE_WGMMA

namespace quire::attention::cuda {

// Describes where a right operand lies: rows of 128 bytes, pieces of 16 bytes swapped by row % 8.
// Its address is a multiple of 1024 up to a step inside the first row. `leading` and `stride` in
// bytes: between columns of 128 bytes, and between groups of eight rows.
__device__ __forceinline__ std::uint64_t describe(std::uint32_t address, std::uint32_t leading,
                                                  std::uint32_t stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | std::uint64_t{(address & 0x3ffffu) >> 4} |
         std::uint64_t{leading >> 4} << 16 | std::uint64_t{stride >> 4} << 32;
}

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
// Makes what this thread wrote to shared memory visible to the products of others, behind a
// barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Names and operands of the 64 registers that hold 16 tiles of a lane.
#define QUIRE_REGISTERS_64                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_TILES_16(d)                                                                         \
  "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),       \
      "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),   \
      "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),   \
      "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),   \
      "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),   \
      "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),   \
      "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]), \
      "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]),             \
      "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),             \
      "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]),             \
      "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]),             \
      "+f"(d[15][2]), "+f"(d[15][3])

// d [64 x 128] (+)= a [64 x 16] b [128 x 16]^T, both in shared memory. A warp holds 16 rows of d as
// mma does.
#define QUIRE_MULTIPLY(type)                                                               \
  asm volatile(                                                                            \
      "{.reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %66, 0;\n"                                                           \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" QUIRE_REGISTERS_64 \
      "}, %64, %65, p, 1, 1, 0, 0;}\n"                                                     \
      : QUIRE_TILES_16(d)                                                                  \
      : "l"(a), "l"(b), "r"(accumulate))
template <DType T>
__device__ __forceinline__ void multiply(float (&d)[16][4], std::uint64_t a, std::uint64_t b,
                                         int accumulate) {
  if constexpr (T == DType::kBFloat16) {
    QUIRE_MULTIPLY("bf16");
  } else {
    QUIRE_MULTIPLY("f16");
  }
}
#undef QUIRE_MULTIPLY

// d [64 x 8 N] += a [64 x 16] b [16 x 8 N]. A warp holds 16 rows of d and a, as mma does.
#define QUIRE_ADD_PRODUCT_64(type)                                                                \
  asm volatile(                                                                                   \
      "{.reg .pred p;\n"                                                                          \
      "setp.eq.b32 p, 0, 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                 \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                  \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"            \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}\n"                                              \
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), \
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), \
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), \
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), \
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), \
        "+f"(d[7][2]), "+f"(d[7][3])                                                              \
      : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "l"(b))
template <DType T>
__device__ __forceinline__ void add_product(float (&d)[8][4], const Left& a, std::uint64_t b) {
  if constexpr (T == DType::kBFloat16) {
    QUIRE_ADD_PRODUCT_64("bf16");
  } else {
    QUIRE_ADD_PRODUCT_64("f16");
  }
}
#undef QUIRE_ADD_PRODUCT_64

#define QUIRE_ADD_PRODUCT_128(type)                                                        \
  asm volatile(                                                                            \
      "{.reg .pred p;\n"                                                                   \
      "setp.eq.b32 p, 0, 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" QUIRE_REGISTERS_64 \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}\n"                                       \
      : QUIRE_TILES_16(d)                                                                  \
      : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "l"(b))
template <DType T>
__device__ __forceinline__ void add_product(float (&d)[16][4], const Left& a, std::uint64_t b) {
  if constexpr (T == DType::kBFloat16) {
    QUIRE_ADD_PRODUCT_128("bf16");
  } else {
    QUIRE_ADD_PRODUCT_128("f16");
  }
}
#undef QUIRE_ADD_PRODUCT_128

}  // namespace quire::attention::cuda

#endif
