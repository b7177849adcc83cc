// The tensor core's small products and how their operands lie in a warp (PTX ISA, mma.m16n8k16). A
// lane is (g, t) = (lane / 4, lane % 4).
#pragma once

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/hopper.cuh"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {

using kernels::cuda::Element;
using kernels::cuda::shared_address;
using tensor::DType;

// An operand [16 x 16] of the product below: words of row g, row g + 8, and the same 8 columns on.
struct Left {
  std::uint32_t a0, a1, a2, a3;
};

// d [16 x 8] += a [16 x 16] b [16 x 8], elements of T in, fp32 sums. b0, b1: rows 2t.. and 2t + 8..
// of column g.
#define QUIRE_MMA(type)                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type         \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])               \
               : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1))
template <DType T>
__device__ __forceinline__ void mma(float (&d)[4], const Left& a, std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (T == DType::kBFloat16) {
    QUIRE_MMA("bf16");
  } else {
    QUIRE_MMA("f16");
  }
}
#undef QUIRE_MMA

// Transposes, over the warp, an 8 x 8 matrix of 16-bit elements, two to a lane.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l names row l % 8 of matrix
// l / 8. It gets two neighbours of each, of row l / 4 or, with load_transposed, of column l / 4.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// Loads 2 bytes of shared memory; the others load as many as their names say.
__device__ __forceinline__ std::uint16_t load_shared_2(std::uint32_t from) {
  std::uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ std::uint32_t load_shared_4(std::uint32_t from) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_shared_8(std::uint32_t from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_8(std::uint32_t to, const uint2& x) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};\n" ::"r"(to), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ void store_shared_16(std::uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

// Returns 2^x of the special function unit: 2 ulp, and 0 for results that would be denormal.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Returns cap * tanh(x / cap), to 2^-21 of the cap. `step` is that of cap_step().
__device__ __forceinline__ float soft_capped(float x, float cap, float step) {
  return cap - __fdividef(2 * cap, 1 + exp2_approx(x * step));
}
__device__ __forceinline__ float cap_step(float cap) {
  constexpr float kLog2E = 1.44269504088896f;
  return 2 * kLog2E / cap;
}

// The place of a token of a run: its block in the run, and its slot there.
struct TokenPlace {
  int block, slot;
};
__device__ __forceinline__ TokenPlace place_of(int token, int block_tokens, int block_shift) {
  const int block = block_shift >= 0 ? token >> block_shift : token / block_tokens;
  return {block, token - block * block_tokens};
}

__device__ __forceinline__ uint4 load_16(const std::uint16_t* from) {
  return __ldg(reinterpret_cast<const uint4*>(from));
}

}  // namespace quire::attention::cuda
