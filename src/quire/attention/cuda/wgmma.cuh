// Products of a warpgroup on Hopper (PTX ISA, wgmma.mma_async): 64 rows at once, the right operand
// read from shared memory. Only for sm_90a: includers ask QUIRE_WGMMA.
#pragma once

#include <cstdint>

#include "quire/attention/cuda/fragments.cuh"
#include "quire/kernels/cuda/hopper.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

using kernels::cuda::await_products;
using kernels::cuda::begin_products;
using kernels::cuda::end_products;
using kernels::cuda::settle;

// Describes where a right operand lies: rows of 128 bytes, pieces of 16 bytes swapped by row % 8.
// Its address is a multiple of 1024 up to a step inside the first row. `leading` and `stride` in
// bytes: between columns of 128 bytes, and between groups of eight rows.
__device__ __forceinline__ std::uint64_t describe(std::uint32_t address, std::uint32_t leading,
                                                  std::uint32_t stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | std::uint64_t{(address & 0x3ffffu) >> 4} |
         std::uint64_t{leading >> 4} << 16 | std::uint64_t{stride >> 4} << 32;
}

// Makes what this thread wrote to shared memory visible to the products of others, behind a
// barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

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
#define QUIRE_ADD_PRODUCT_64(type)                                                        \
  asm volatile(                                                                           \
      "{.reg .pred p;\n"                                                                  \
      "setp.eq.b32 p, 0, 0;\n"                                                            \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" QUIRE_REGISTERS_32 \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}\n"                                      \
      : QUIRE_TILES_8(d)                                                                  \
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
