#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/cuda/sums.cuh"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 256;
constexpr int kNormThreads = kMostThreads;

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

constexpr int kVector = 4;  // floats that a thread loads at once
constexpr int kMostVectors = 4;

// Normalises a row that the registers of a block hold. Weights are there before the row is. Blocks
// are small, so that they wait beside the kernel before.
template <DType T>
__device__ void normalise_held(const NormParams& params) {
  const int vectors = params.width / kVector, thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const auto* const weights = reinterpret_cast<const float4*>(params.weight);
  const auto* const row =
      reinterpret_cast<const float4*>(params.x + std::int64_t{blockIdx.x} * params.width);
  float4 weight[kMostVectors], x[kMostVectors];
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int at = thread + i * threads;
    weight[i] = at < vectors ? __ldg(weights + at) : float4{};
  }
  begin_kernel();
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int at = thread + i * threads;
    x[i] = at < vectors ? row[at] : float4{};
    squares += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
  }
  const float mean = block_sum(squares) / static_cast<float>(params.width);
  const float scale = 1.0f / sqrtf(mean + params.epsilon);
  auto* const out = reinterpret_cast<uint2*>(params.out + std::int64_t{blockIdx.x} * params.width);
#pragma unroll
  for (int i = 0; i < kMostVectors; ++i) {
    const int at = thread + i * threads;
    if (at < vectors) {
      out[at] = {
          Element<T>::round_pair(x[i].x * scale * weight[i].x, x[i].y * scale * weight[i].y),
          Element<T>::round_pair(x[i].z * scale * weight[i].z, x[i].w * scale * weight[i].w)};
    }
  }
}

// Returns the threads of a block that holds a row of this width in registers; 0: none can.
int threads_that_hold(std::int32_t width) {
  constexpr int kLeastThreads = 64;
  if (width % kVector != 0 || width > kMostVectors * kVector * kNormThreads) {
    return 0;
  }
  int threads = kLeastThreads;
  while (threads * kVector * kMostVectors < width) {
    threads *= 2;
  }
  return threads;
}

template <DType T>
__global__ void __launch_bounds__(kNormThreads) rms_norm_held_kernel(const NormParams params) {
  normalise_held<T>(params);
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
  const float* const weight = params.weight + index % params.heads * params.weight_stride;
  for (int i = lane; i < params.head_dim; i += 32) {
    x[i] = x[i] * scale * weight[i];
  }
}

__global__ void add_bias_kernel(float* x, const float* bias, std::int32_t width) {
  begin_kernel();
  float* row = x + std::int64_t{blockIdx.x} * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    row[i] += bias[i];
  }
}

// Returns the activation of `gate` times `up`, as the enum says; NaN stays NaN.
template <Activation A>
__device__ __forceinline__ float gated(float gate, float up) {
  constexpr float kLimit = 7.0f;
  const auto times_sigmoid = [](float x, float of) { return x / (1.0f + expf(-of)); };
  const auto at_most = [](float x) { return x > kLimit ? kLimit : x; };
  if constexpr (A == Activation::kSilu) {
    return times_sigmoid(gate, gate) * up;
  } else if constexpr (A == Activation::kGeluTanh) {
    constexpr float kTwoRootsOfTwoByPi = 1.5957691216f;
    const float cubic = gate * gate * 0.044715f;
    return times_sigmoid(gate, gate * (1.0f + cubic) * kTwoRootsOfTwoByPi) * up;
  } else if constexpr (A == Activation::kSigmoid) {
    return times_sigmoid(up, gate);
  } else if constexpr (A == Activation::kClampedSwiglu) {
    const float least = at_most(gate), other = at_most(up);
    return times_sigmoid(least, least * 1.702f) * ((other < -kLimit ? -kLimit : other) + 1.0f);
  } else {
    return (gate < 0.0f ? 0.0f : gate) * up;
  }
}

template <DType T, Activation A>
__global__ void gate_mul_kernel(const GateParams params) {
  begin_kernel();
  const std::int32_t width = params.width;
  const int parts = params.has_gates ? 2 : 1;
  const float* row = params.gate_up + std::int64_t{blockIdx.x} * parts * width;
  const float* second = row + (parts - 1) * width;
  Half* to = params.out + std::int64_t{blockIdx.x} * width;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (width % kVector == 0) {
    const auto* const gates = reinterpret_cast<const float4*>(row);
    const auto* const ups = reinterpret_cast<const float4*>(second);
    for (; i < width / kVector; i += step) {
      const float4 gate = gates[i], up = ups[i];
      reinterpret_cast<uint2*>(to)[i] = {
          Element<T>::round_pair(gated<A>(gate.x, up.x), gated<A>(gate.y, up.y)),
          Element<T>::round_pair(gated<A>(gate.z, up.z), gated<A>(gate.w, up.w))};
    }
    return;
  }
  for (; i < width; i += step) {
    to[i] = Element<T>::round(gated<A>(row[i], second[i]));
  }
}

template <DType T>
auto gate_kernel(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return gate_mul_kernel<T, Activation::kGeluTanh>;
    case Activation::kSigmoid:
      return gate_mul_kernel<T, Activation::kSigmoid>;
    case Activation::kClampedSwiglu:
      return gate_mul_kernel<T, Activation::kClampedSwiglu>;
    case Activation::kRelu:
      return gate_mul_kernel<T, Activation::kRelu>;
    case Activation::kSilu:
      break;
  }
  return gate_mul_kernel<T, Activation::kSilu>;
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
  const int threads = threads_that_hold(params.width);
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return threads > 0 ? launch_early(rms_norm_held_kernel<T>, {blocks(params.rows), threads},
                                      stream, params)
                       : launch_early(rms_norm_kernel<T>, {blocks(params.rows), kNormThreads},
                                      stream, params);
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

cudaError_t gate_mul(const GateParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  const std::int32_t each = params.width % kVector == 0 ? kVector : 1;
  const unsigned columns =
      std::min(16u, static_cast<unsigned>((params.width / each + kThreads - 1) / kThreads));
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(gate_kernel<T>(params.activation),
                        {dim3(blocks(params.rows), columns), kThreads}, stream, params);
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
