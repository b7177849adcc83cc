#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/gemv.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // in flight of a lane
constexpr std::int64_t kFewOutputs = 8192;
constexpr int kElements = 8;

template <DType T>
__device__ __forceinline__ void add_products(float& sum, std::uint32_t w, std::uint32_t x) {
  sum += Element<T>::widen_low(w) * Element<T>::widen_low(x);
  sum += Element<T>::widen_high(w) * Element<T>::widen_high(x);
}

template <DType T>
__device__ __forceinline__ void add_products(float& sum, const uint4& w, const uint4& x) {
  add_products<T>(sum, w.x, x.x);
  add_products<T>(sum, w.y, x.y);
  add_products<T>(sum, w.z, x.z);
  add_products<T>(sum, w.w, x.w);
}

// Computes `kRows` outputs per warp, so that one load of x serves them all.
template <DType T, int kRows>
__global__ void __launch_bounds__(kThreads) gemv_kernel(const GemvParams params) {
  const std::int64_t warp =
      std::int64_t{blockIdx.x} * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, pieces = params.inputs / kElements;
  if (warp * kRows >= params.outputs) {
    return;
  }
  constexpr int kAtOnce = kLoads / kRows;
  const auto* x = reinterpret_cast<const uint4*>(params.x);
  const uint4* weights[kRows];
  float sum[kRows] = {};
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const std::int64_t output = min(warp * kRows + row, params.outputs - 1);
    weights[row] = reinterpret_cast<const uint4*>(params.weights + output * params.inputs);
  }
  uint4 w[kRows][kAtOnce];
  const auto ask = [&](int first) {
    const bool all_there = first + (kAtOnce - 1) * 32 < pieces;
    if (all_there) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          w[row][i] = __ldcs(weights[row] + first + i * 32);
        }
      }
    }
    return all_there;
  };
  // The first weights are asked for before the kernel that makes x is done.
  int piece = lane;
  bool asked = ask(piece);
  begin_kernel();
  for (; asked; asked = ask(piece)) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint4 values = x[piece + i * 32];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        add_products<T>(sum[row], w[row][i], values);
      }
    }
    piece += 32 * kAtOnce;
  }
  for (; piece < pieces; piece += 32) {
    const uint4 values = x[piece];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      add_products<T>(sum[row], __ldcs(weights[row] + piece), values);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], lanes);
    }
    const std::int64_t output = warp * kRows + row;
    if (lane == 0 && output < params.outputs) {
      params.out[output] = (params.accumulate ? params.out[output] : 0.0f) + sum[row];
    }
  }
}

template <DType T, int kRows>
cudaError_t launch(const GemvParams& params, cudaStream_t stream) {
  constexpr std::int64_t kOutputs = std::int64_t{kThreads} / 32 * kRows;  // outputs of a block
  const auto blocks = static_cast<unsigned>((params.outputs + kOutputs - 1) / kOutputs);
  return launch_early(gemv_kernel<T, kRows>, {blocks, kThreads}, stream, params);
}

}  // namespace

cudaError_t gemv(const GemvParams& params, cudaStream_t stream) {
  // Where outputs are few, more warps keep more of the memory busy.
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return params.outputs <= kFewOutputs ? launch<T, 1>(params, stream)
                                         : launch<T, 2>(params, stream);
  });
}

}  // namespace quire::kernels::cuda
