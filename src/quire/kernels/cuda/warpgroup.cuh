// Products of a warpgroup whose left operand is in registers (PTX ISA, wgmma.mma_async): 64
// outputs, and 8 N columns in shared memory. Only for sm_90a: includers ask QUIRE_WGMMA.
#pragma once

#include <cstdint>

#include "quire/kernels/cuda/hopper.cuh"
#include "quire/tensor/dtype.h"

#if QUIRE_WGMMA

namespace quire::kernels::cuda {

// Describes a right operand whose columns lie in groups of eight, 16 bytes of each column behind
// those of the one before. `step` is in bytes, between the 16 bytes of a column.
__device__ __forceinline__ std::uint64_t describe_columns(std::uint32_t address,
                                                          std::uint32_t step) {
  constexpr std::uint64_t kGroupBytes = 128;
  return std::uint64_t{(address & 0x3ffffu) >> 4} | std::uint64_t{step >> 4} << 16 |
         (kGroupBytes >> 4) << 32;
}

// d [64 x 8 N] = a [64 x 16] b [16 x 8 N], added to d where `accumulate`. A warp holds 16 outputs
// of d and a, as mma.m16n8k16 does.
#define QUIRE_MULTIPLY(type)                                                              \
  asm volatile(                                                                           \
      "{.reg .pred p;\n"                                                                  \
      "setp.ne.b32 p, %21, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {" QUIRE_REGISTERS_16 \
      "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;}\n"                                      \
      : QUIRE_TILES_4(d)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
template <tensor::DType T>
__device__ __forceinline__ void multiply(float (&d)[4][4], const std::uint32_t (&a)[4],
                                         std::uint64_t b, int accumulate) {
  if constexpr (T == tensor::DType::kBFloat16) {
    QUIRE_MULTIPLY("bf16");
  } else {
    QUIRE_MULTIPLY("f16");
  }
}
#undef QUIRE_MULTIPLY

#define QUIRE_MULTIPLY(type)                                                              \
  asm volatile(                                                                           \
      "{.reg .pred p;\n"                                                                  \
      "setp.ne.b32 p, %37, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" QUIRE_REGISTERS_32 \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}\n"                                      \
      : QUIRE_TILES_8(d)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
template <tensor::DType T>
__device__ __forceinline__ void multiply(float (&d)[8][4], const std::uint32_t (&a)[4],
                                         std::uint64_t b, int accumulate) {
  if constexpr (T == tensor::DType::kBFloat16) {
    QUIRE_MULTIPLY("bf16");
  } else {
    QUIRE_MULTIPLY("f16");
  }
}
#undef QUIRE_MULTIPLY

#define QUIRE_MULTIPLY(type)                                                               \
  asm volatile(                                                                            \
      "{.reg .pred p;\n"                                                                   \
      "setp.ne.b32 p, %69, 0;\n"                                                           \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" QUIRE_REGISTERS_64 \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}\n"                                       \
      : QUIRE_TILES_16(d)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
template <tensor::DType T>
__device__ __forceinline__ void multiply(float (&d)[16][4], const std::uint32_t (&a)[4],
                                         std::uint64_t b, int accumulate) {
  if constexpr (T == tensor::DType::kBFloat16) {
    QUIRE_MULTIPLY("bf16");
  } else {
    QUIRE_MULTIPLY("f16");
  }
}
#undef QUIRE_MULTIPLY

}  // namespace quire::kernels::cuda

#endif
