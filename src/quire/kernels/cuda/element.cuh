// The 16-bit floats that a GPU computes with: Element<T> says what the bits mean. Kernels take T as
// a template parameter and have an instance for each; their memory is std::uint16_t in both cases.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

template <tensor::DType T>
struct Element;

// Pairs are words of two elements, the first one low. Rounding is to nearest even.
template <>
struct Element<tensor::DType::kBFloat16> {
  __device__ static float widen(std::uint16_t bits) {
    return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
  }
  __device__ static float widen_low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
  __device__ static float widen_high(std::uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }
  __device__ static std::uint16_t round(float x) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
  __device__ static std::uint32_t round_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};

// Values beyond 65504 become infinite.
template <>
struct Element<tensor::DType::kFloat16> {
  __device__ static float widen(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  __device__ static float widen_low(std::uint32_t pair) {
    return widen(static_cast<std::uint16_t>(pair));
  }
  __device__ static float widen_high(std::uint32_t pair) {
    return widen(static_cast<std::uint16_t>(pair >> 16));
  }
  __device__ static std::uint16_t round(float x) { return __half_as_ushort(__float2half_rn(x)); }
  __device__ static std::uint32_t round_pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};

// Calls launch.operator()<T>() of the instance for `dtype`. Returns cudaErrorInvalidValue when
// there is none.
template <class Launch>
[[nodiscard]] cudaError_t launch_for_dtype(tensor::DType dtype, const Launch& launch) {
  switch (dtype) {
    case tensor::DType::kBFloat16:
      return launch.template operator()<tensor::DType::kBFloat16>();
    case tensor::DType::kFloat16:
      return launch.template operator()<tensor::DType::kFloat16>();
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace quire::kernels::cuda
