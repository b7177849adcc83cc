#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/kernels/cuda/sums.cuh"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 256;
constexpr int kWarpThreads = 32;

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

__device__ __forceinline__ float* state_at(const LayerStates& states, std::int32_t index) {
  return reinterpret_cast<float*>(states.data + index * states.stride);
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Returns ln(1 + e^x).
__device__ double softplus(double x) {
  constexpr double kLinear = 20.0;  // it is x from here on, as in torch
  return x > kLinear ? x : log1p(exp(x));
}

// Returns the input of a row of a run, counted from its first row; of the tail where it is below 0.
__device__ __forceinline__ float conv_input(const ConvParams& params, const StateRows& run,
                                            std::int64_t row, int channel) {
  if (row < 0) {
    return run.from < 0 ? 0.0f
                        : state_at(params.states,
                                   run.from)[(params.taps - 1 + row) * params.channels + channel];
  }
  const std::int64_t at = (run.first_row + row) * params.stride + channel;
  return params.factor == nullptr ? params.in[at] : __fmul_rn(params.in[at], params.factor[at]);
}

constexpr int kConvRows = 8;  // of a thread

// Returns the output of a row of a run, counted from its first row.
__device__ float convolve_row(const ConvParams& params, const StateRows& run, std::int64_t row,
                              int channel) {
  float sum = params.bias == nullptr ? 0.0f : params.bias[channel];
  for (int tap = 0; tap < params.taps; ++tap) {
    sum = __fmaf_rn(params.weights[std::int64_t{tap} * params.channels + channel],
                    conv_input(params, run, row - (params.taps - 1) + tap, channel), sum);
  }
  return params.has_silu ? silu(sum) : sum;
}

// Convolves kConvRows rows of one run. Asks for their inputs together, for each once.
template <int kTaps>
__device__ __forceinline__ void convolve_together(const ConvParams& params, const StateRows& run,
                                                  std::int64_t row, int channel, float* out) {
  float inputs[kConvRows + kTaps - 1], weights[kTaps];
#pragma unroll
  for (int i = 0; i < kConvRows + kTaps - 1; ++i) {
    inputs[i] = conv_input(params, run, row - (kTaps - 1) + i, channel);
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    weights[tap] = params.weights[std::int64_t{tap} * params.channels + channel];
  }
  const float bias = params.bias == nullptr ? 0.0f : params.bias[channel];
#pragma unroll
  for (int i = 0; i < kConvRows; ++i) {
    float sum = bias;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      sum = __fmaf_rn(weights[tap], inputs[i + tap], sum);
    }
    out[std::int64_t{i} * params.channels] = params.has_silu ? silu(sum) : sum;
  }
}

// kTaps: of the convolution, or 0 for a number of taps that is seldom.
template <int kTaps>
__global__ void __launch_bounds__(kThreads) convolve_kernel(const ConvParams params) {
  begin_kernel();
  const int channel = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (channel >= params.channels) {
    return;
  }
  const std::int64_t first = std::int64_t{blockIdx.x} * kConvRows;
  const std::int64_t end = min(first + kConvRows, params.states.rows);
  float* const out = params.out + first * params.channels + channel;
  const std::int32_t index = params.states.run_of[first];
  if constexpr (kTaps > 0) {
    if (end == first + kConvRows && index >= 0 && params.states.run_of[end - 1] == index) {
      const StateRows run = params.states.runs[index];
      convolve_together<kTaps>(params, run, first - run.first_row, channel, out);
      return;
    }
  }
  for (std::int64_t row = first; row < end; ++row) {
    const std::int32_t of = params.states.run_of[row];
    float& to = out[(row - first) * params.channels];
    to = 0;
    if (of >= 0) {
      const StateRows run = params.states.runs[of];
      to = convolve_row(params, run, row - run.first_row, channel);
    }
  }
}

// Goes upwards, so that inputs which stay in the tail are read before they are overwritten.
__global__ void __launch_bounds__(kThreads) keep_tails_kernel(const ConvParams params) {
  begin_kernel();
  const StateRows run = params.states.runs[blockIdx.x];
  const int channel = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (channel >= params.channels || run.num_rows == 0) {
    return;
  }
  const auto keep = [&](std::int64_t rows, std::int32_t to) {
    float* const tail = state_at(params.states, to) + channel;
    for (int i = 0; i < params.taps - 1; ++i) {
      tail[std::int64_t{i} * params.channels] =
          conv_input(params, run, rows - (params.taps - 1) + i, channel);
    }
  };
  for (int i = 0; i < run.num_captures; ++i) {
    const CapturedState kept = params.states.captures[run.first_capture + i];
    keep(kept.row - run.first_row + 1, kept.to);
  }
  keep(run.num_rows, run.to);
}

// Makes a head to a warp one of length 1, times the factor.
__global__ void __launch_bounds__(kThreads) make_unit_heads_kernel(const UnitHeadParams params) {
  begin_kernel();
  constexpr float kEpsilon = 1e-6f;
  const std::int64_t index =
      std::int64_t{blockIdx.x} * (kThreads / kWarpThreads) + threadIdx.x / kWarpThreads;
  if (index >= params.rows * params.heads) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  float* const x =
      params.x + index / params.heads * params.stride + index % params.heads * params.head_dim;
  float squares = 0;
  for (int i = lane; i < params.head_dim; i += kWarpThreads) {
    squares = __fmaf_rn(x[i], x[i], squares);
  }
  const float by = params.factor / sqrtf(warp_sum(squares) + kEpsilon);
  for (int i = lane; i < params.head_dim; i += kWarpThreads) {
    x[i] = __fmul_rn(x[i], by);
  }
}

__global__ void __launch_bounds__(kThreads) make_state_gates_kernel(const StateGateParams params) {
  begin_kernel();
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= params.rows * params.heads) {
    return;
  }
  const std::int64_t row = index / params.heads;
  const int head = static_cast<int>(index % params.heads);
  const float* const raw = params.raw + row * params.stride + head;
  float* const gates = params.gates + row * 2 * params.heads + head;
  const double decay = params.decay[head], shift = params.shift[head];
  if (params.of_scan) {
    const double soft = softplus(raw[0] + shift);
    const auto step = static_cast<float>(fmin(fmax(soft, params.least), params.most));
    gates[0] = step;
    gates[params.heads] = static_cast<float>(exp(decay * step));
  } else {
    const double b = raw[0], a = raw[params.heads];
    gates[0] = static_cast<float>(1.0 / (1.0 + exp(-b)));
    gates[params.heads] = static_cast<float>(exp(decay * softplus(a + shift)));
  }
}

template <DType T>
__global__ void __launch_bounds__(kThreads) gate_rows_kernel(const RowGateParams params) {
  begin_kernel();
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= params.width) {
    return;
  }
  const std::int64_t at = std::int64_t{blockIdx.x} * params.width + i;
  float x = params.x[at];
  if (params.gate != RowGate::kNone) {
    const float gate = params.gates[std::int64_t{blockIdx.x} * params.stride + i];
    x = __fmul_rn(x, params.gate == RowGate::kSilu ? silu(gate) : gate);
  }
  if (params.out != nullptr) {
    params.out[at] = x;
  }
  if (params.rounded != nullptr) {
    params.rounded[at] = Element<T>::round(x);
  }
}

template <DType T>
__global__ void __launch_bounds__(kThreads) gate_output_kernel(const OutputGateParams params) {
  begin_kernel();
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= params.width) {
    return;
  }
  Half& x = params.x[std::int64_t{blockIdx.x} * params.width + i];
  const float gate = params.gates[std::int64_t{blockIdx.x} * params.stride + i];
  x = Element<T>::round(Element<T>::widen(x) / (1.0f + expf(-gate)));
}

dim3 row_blocks(std::int64_t rows, std::int64_t width) {
  return {static_cast<unsigned>(rows), blocks_for(width, kThreads)};
}

}  // namespace

cudaError_t convolve(const ConvParams& params, cudaStream_t stream) {
  if (params.states.rows == 0) {
    return cudaSuccess;
  }
  const auto kernel = params.taps == 3   ? convolve_kernel<3>
                      : params.taps == 4 ? convolve_kernel<4>
                                         : convolve_kernel<0>;
  const dim3 blocks(blocks_for(params.states.rows, kConvRows),
                    blocks_for(params.channels, kThreads));
  return launch_early(kernel, {blocks, kThreads}, stream, params);
}

cudaError_t keep_tails(const ConvParams& params, cudaStream_t stream) {
  if (params.states.num_runs == 0) {
    return cudaSuccess;
  }
  return launch_early(keep_tails_kernel,
                      {row_blocks(params.states.num_runs, params.channels), kThreads}, stream,
                      params);
}

cudaError_t make_unit_heads(const UnitHeadParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(make_unit_heads_kernel,
                      {blocks_for(params.rows * params.heads, kThreads / kWarpThreads), kThreads},
                      stream, params);
}

cudaError_t make_state_gates(const StateGateParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(make_state_gates_kernel,
                      {blocks_for(params.rows * params.heads, kThreads), kThreads}, stream, params);
}

cudaError_t gate_rows(const RowGateParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(gate_rows_kernel<T>, {row_blocks(params.rows, params.width), kThreads},
                        stream, params);
  });
}

cudaError_t gate_output(const OutputGateParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(gate_output_kernel<T>, {row_blocks(params.rows, params.width), kThreads},
                        stream, params);
  });
}

}  // namespace quire::kernels::cuda
