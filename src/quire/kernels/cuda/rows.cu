#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 256;
constexpr int kNormThreads = 1024;

// Returns the sum over a warp to every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, lanes);
  }
  return x;
}

// Returns the sum over a block of kNormThreads to every thread.
__device__ float block_sum(float x) {
  __shared__ float sums[kNormThreads / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float total = 0;
#pragma unroll
  for (float sum : sums) {
    total += sum;
  }
  return total;
}

template <DType T>
__global__ void embed_kernel(const EmbedParams params) {
  begin_kernel();
  const std::int32_t from = params.from[blockIdx.x];
  const std::int32_t id = from < 0 ? params.ids[blockIdx.x] : max(params.chosen[from], 0);
  const Half* row = params.table + std::int64_t{id} * params.width;
  float* to = params.out + std::int64_t{blockIdx.x} * params.width;
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
    to[i] = Element<T>::widen(row[i]);
  }
}

template <DType T>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const NormParams params) {
  begin_kernel();
  const float* x = params.x + std::int64_t{blockIdx.x} * params.width;
  Half* out = params.out + std::int64_t{blockIdx.x} * params.width;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kNormThreads) {
    squares += x[i] * x[i];
  }
  const float mean = block_sum(squares) / static_cast<float>(params.width);
  const float scale = 1.0f / sqrtf(mean + params.epsilon);
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kNormThreads) {
    out[i] = Element<T>::round(x[i] * scale * params.weight[i]);
  }
}

// Normalises one head per warp.
__global__ void __launch_bounds__(kThreads) rms_norm_heads_kernel(const HeadNormParams params) {
  begin_kernel();
  const std::int64_t index =
      std::int64_t{blockIdx.x} * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (index >= params.rows * params.heads) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* x =
      params.x + index / params.heads * params.stride + index % params.heads * params.head_dim;
  float squares = 0;
  for (int i = lane; i < params.head_dim; i += 32) {
    squares += x[i] * x[i];
  }
  const float mean = warp_sum(squares) / static_cast<float>(params.head_dim);
  const float scale = 1.0f / sqrtf(mean + params.epsilon);
  for (int i = lane; i < params.head_dim; i += 32) {
    x[i] = x[i] * scale * params.weight[i];
  }
}

__global__ void add_bias_kernel(float* x, const float* bias, std::int32_t width) {
  begin_kernel();
  float* row = x + std::int64_t{blockIdx.x} * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    row[i] += bias[i];
  }
}

template <DType T>
__global__ void silu_mul_kernel(const SiluParams params) {
  begin_kernel();
  const std::int32_t width = params.width;
  const float* row = params.gate_up + std::int64_t{blockIdx.x} * 2 * width;
  Half* to = params.out + std::int64_t{blockIdx.x} * width;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); i < width; i += step) {
    const float gate = row[i];
    to[i] = Element<T>::round(gate / (1.0f + expf(-gate)) * row[width + i]);
  }
}

__global__ void gather_rows_kernel(const float* x, const std::int32_t* rows, std::int32_t width,
                                   float* out) {
  begin_kernel();
  const float* from = x + std::int64_t{rows[blockIdx.x]} * width;
  float* to = out + std::int64_t{blockIdx.x} * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    to[i] = from[i];
  }
}

unsigned blocks(std::int64_t rows) { return static_cast<unsigned>(rows); }

}  // namespace

cudaError_t embed(const EmbedParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(embed_kernel<T>, {blocks(params.rows), kThreads}, stream, params);
  });
}

cudaError_t rms_norm(const NormParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(rms_norm_kernel<T>, {blocks(params.rows), kNormThreads}, stream, params);
  });
}

cudaError_t rms_norm_heads(const HeadNormParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  constexpr std::int64_t kWarps = kThreads / 32;
  const std::int64_t heads = params.rows * params.heads;
  return launch_early(rms_norm_heads_kernel, {blocks((heads + kWarps - 1) / kWarps), kThreads},
                      stream, params);
}

cudaError_t add_bias(float* x, const float* bias, std::int64_t rows, std::int32_t width,
                     cudaStream_t stream) {
  if (rows == 0) {
    return cudaSuccess;
  }
  return launch_early(add_bias_kernel, {blocks(rows), kThreads}, stream, x, bias, width);
}

cudaError_t silu_mul(const SiluParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  const unsigned columns =
      std::min(16u, static_cast<unsigned>((params.width + kThreads - 1) / kThreads));
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(silu_mul_kernel<T>, {dim3(blocks(params.rows), columns), kThreads}, stream,
                        params);
  });
}

cudaError_t gather_rows(const float* x, const std::int32_t* rows, std::int64_t count,
                        std::int32_t width, float* out, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  return launch_early(gather_rows_kernel, {blocks(count), kThreads}, stream, x, rows, width, out);
}

}  // namespace quire::kernels::cuda
