#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/residual.h"
#include "quire/kernels/cuda/sums.cuh"

namespace quire::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) add_residual_kernel(const ResidualParams params) {
  begin_kernel();
  const float* const x = params.x + std::int64_t{blockIdx.x} * params.width;
  float* const out = params.out + std::int64_t{blockIdx.x} * params.width;
  float scale = 1;
  if (params.norm != nullptr) {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
      squares = __fmaf_rn(x[i], x[i], squares);
    }
    scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(params.width) + params.epsilon);
  }
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
    const float normed =
        params.norm == nullptr ? x[i] : __fmul_rn(__fmul_rn(x[i], scale), params.norm[i]);
    out[i] = __fadd_rn(out[i], __fmul_rn(normed, params.factor));
  }
}

__global__ void __launch_bounds__(kThreads) scale_kernel(const ScaleParams params) {
  begin_kernel();
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < params.count;
       i += step) {
    const float value = __fmul_rn(params.values[i], params.factor);
    params.values[i] = params.cap == 0 ? value : __fmul_rn(params.cap, tanhf(value / params.cap));
  }
}

__global__ void __launch_bounds__(kThreads) grow_kernel(const GrowthParams params) {
  begin_kernel();
  const std::int32_t steps = params.positions[blockIdx.x] / params.length;
  if (steps == 0) {
    return;
  }
  const auto factor = static_cast<float>(1.0 + params.growth * log(1.0 + steps));
  float* const q = params.q + blockIdx.x * params.stride;
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
    q[i] = __fmul_rn(q[i], factor);
  }
}

}  // namespace

cudaError_t add_residual(const ResidualParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(add_residual_kernel, {static_cast<unsigned>(params.rows), kThreads}, stream,
                      params);
}

cudaError_t scale(const ScaleParams& params, cudaStream_t stream) {
  if (params.count == 0) {
    return cudaSuccess;
  }
  constexpr std::int64_t kMostBlocks = 4096;
  const std::int64_t blocks = (params.count + kThreads - 1) / kThreads;
  return launch_early(
      scale_kernel, {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads},
      stream, params);
}

cudaError_t grow_queries(const GrowthParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(grow_kernel, {static_cast<unsigned>(params.rows), kThreads}, stream, params);
}

}  // namespace quire::kernels::cuda
