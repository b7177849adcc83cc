// How a row becomes e4m3, for kernels that write codes of rows (e4m3_rows.h).
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// The scale of a row. Where some value of the row is not finite, its codes are NaN.
struct RowScale {
  float scale = 1.0f;
  float inverse = 1.0f;
  bool finite = true;

  // Returns the codes of four inputs, which are two pairs.
  template <tensor::DType T>
  [[nodiscard]] __device__ __forceinline__ std::uint32_t codes(std::uint32_t first,
                                                               std::uint32_t second) const {
    constexpr std::uint32_t kNaNs = 0x7f7f7f7fu;
    const float2 even = {__fmul_rn(Element<T>::widen_low(first), inverse),
                         __fmul_rn(Element<T>::widen_low(second), inverse)};
    const float2 odd = {__fmul_rn(Element<T>::widen_high(first), inverse),
                        __fmul_rn(Element<T>::widen_high(second), inverse)};
    const std::uint32_t low = __nv_cvt_float2_to_fp8x2(even, __NV_SATFINITE, __NV_E4M3);
    const std::uint32_t high = __nv_cvt_float2_to_fp8x2(odd, __NV_SATFINITE, __NV_E4M3);
    return finite ? low | high << 16 : kNaNs;
  }
};

// Returns the larger magnitudes of two pairs and the eight numbers of `values`. Bits of magnitudes
// order as integers do.
__device__ __forceinline__ std::uint32_t larger_of(std::uint32_t pair, const uint4& values) {
  constexpr std::uint32_t kMagnitudes = 0x7fff7fffu;
  const std::uint32_t low = __vmaxu2(values.x & kMagnitudes, values.y & kMagnitudes);
  const std::uint32_t high = __vmaxu2(values.z & kMagnitudes, values.w & kMagnitudes);
  return __vmaxu2(pair, __vmaxu2(low, high));
}

// Returns the scale of a row whose largest magnitude has these bits.
template <tensor::DType T>
__device__ __forceinline__ RowScale scale_of(std::uint32_t largest) {
  constexpr float kLargest = 448.0f;  // of e4m3
  constexpr std::uint32_t kInfinity = T == tensor::DType::kBFloat16 ? 0x7f80u : 0x7c00u;
  const float magnitude = Element<T>::widen(static_cast<std::uint16_t>(largest));
  if (largest >= kInfinity) {
    return {.finite = false};
  }
  // Smaller magnitudes have no inverse in fp32. They become zeros.
  constexpr float kSmallest = 0x1p-110f;
  if (magnitude < kSmallest) {
    return {.scale = 1.0f, .inverse = 0.0f};
  }
  return {.scale = __fdiv_rn(magnitude, kLargest), .inverse = __fdiv_rn(kLargest, magnitude)};
}

// Returns the larger of two halves of a word, over all lanes of a warp.
__device__ __forceinline__ std::uint32_t largest_of_warp(std::uint32_t pair) {
  const std::uint32_t mine = max(pair & 0xffffu, pair >> 16);
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, mine);
#else
  return mine;
#endif
}

// Returns the scale of a row that all threads of a block look at. All get the same.
template <tensor::DType T>
__device__ RowScale scale_of_row(const uint4* row, int vectors) {
  std::uint32_t pair = 0;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
    pair = larger_of(pair, row[i]);
  }
  __shared__ std::uint32_t of_warps[kWarpLanes];
  __syncthreads();  // nobody reads those of another row
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  if (const std::uint32_t largest = largest_of_warp(pair); lane == 0) {
    of_warps[threadIdx.x / kWarpLanes] = largest;
  }
  __syncthreads();
  return scale_of<T>(
      largest_of_warp(lane < static_cast<int>(blockDim.x) / kWarpLanes ? of_warps[lane] : 0));
}

}  // namespace quire::kernels::cuda
