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

__global__ void __launch_bounds__(kThreads) convolve_kernel(const ConvParams params) {
  begin_kernel();
  const int channel = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (channel >= params.channels) {
    return;
  }
  float& out = params.out[std::int64_t{blockIdx.x} * params.channels + channel];
  const std::int32_t index = params.states.run_of[blockIdx.x];
  if (index < 0) {
    out = 0;
    return;
  }
  const StateRows run = params.states.runs[index];
  const std::int64_t row = std::int64_t{blockIdx.x} - run.first_row;
  float sum = params.bias == nullptr ? 0.0f : params.bias[channel];
  for (int tap = 0; tap < params.taps; ++tap) {
    sum = __fmaf_rn(params.weights[std::int64_t{tap} * params.channels + channel],
                    conv_input(params, run, row - (params.taps - 1) + tap, channel), sum);
  }
  out = params.has_silu ? silu(sum) : sum;
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

// Keeps loads of shared memory behind this point, where registers are few.
__device__ __forceinline__ void hold_loads() { asm volatile("" ::: "memory"); }

// Runs 32 columns of a head's matrix through the rows of a sequence, a column in the registers of a
// lane. Keys of up to kMost numbers; those behind key_dim are zeros, and change nothing.
template <int kMost, bool kScan>
struct Columns {
  static constexpr int kMine = kMost / kWarpThreads;

  const StateUpdateParams& params;
  const StateRows& run;
  const int head, lane, column;
  const bool is_there;
  float state[kMost];

  // The inputs of a row. Lane l has keys and queries l, l + 32 and so on.
  struct Row {
    float key[kMine], query[kMine];
    float value, decay, beta;
  };

  __device__ std::int64_t matrix_at() const {
    return params.matrix + std::int64_t{head} * params.key_dim * params.value_dim + column;
  }
  __device__ void load_state() {
    const float* const from =
        run.from < 0 ? nullptr : state_at(params.states, run.from) + matrix_at();
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      state[k] = from != nullptr && is_there && k < params.key_dim
                     ? from[std::int64_t{k} * params.value_dim]
                     : 0.0f;
    }
  }
  __device__ void store_state(std::int32_t index) const {
    float* const to = state_at(params.states, index) + matrix_at();
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (is_there && k < params.key_dim) {
        to[std::int64_t{k} * params.value_dim] = state[k];
      }
    }
  }
  __device__ Row load_row(std::int32_t row) const {
    const float* const x = params.x + std::int64_t{row} * params.channels;
    const float* const gates = params.gates + std::int64_t{row} * 2 * params.heads + head;
    const int key_head =
        params.keys_in_turn ? head % params.key_heads : head / (params.heads / params.key_heads);
    const int first = key_head * params.key_dim;
    Row made;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int k = i * kWarpThreads + lane;
      const bool has_key = k < params.key_dim;
      made.key[i] = has_key ? x[params.key + first + k] : 0.0f;
      made.query[i] = has_key ? x[params.query + first + k] : 0.0f;
    }
    made.value = is_there ? x[params.value + head * params.value_dim + column] : 0.0f;
    made.beta = gates[0];
    made.decay = gates[params.heads];
    return made;
  }
  // Updates the state by a row, whose keys and queries all lanes see. Returns the output.
  __device__ float update(const Row& row, const float4* keys, const float4* queries) {
    float read = 0, out = 0;
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) {
      hold_loads();
      const float4 key = kScan ? float4{} : keys[i];
      const float of[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& mine = state[i * 4 + j];
        mine = __fmul_rn(mine, row.decay);
        read = kScan ? 0.0f : __fmaf_rn(mine, of[j], read);
      }
    }
    const float change =
        kScan ? __fmul_rn(row.value, row.beta) : __fmul_rn(row.beta, __fsub_rn(row.value, read));
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) {
      hold_loads();
      const float4 key = keys[i], query = queries[i];
      const float of[4] = {key.x, key.y, key.z, key.w};
      const float by[4] = {query.x, query.y, query.z, query.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float& mine = state[i * 4 + j];
        mine = __fmaf_rn(change, of[j], mine);
        out = __fmaf_rn(mine, by[j], out);
      }
    }
    return kScan ? __fmaf_rn(row.value, params.skip[head], out) : out;
  }
};

template <int kMost, bool kScan>
__global__ void __launch_bounds__(kWarpThreads) update_kernel(const StateUpdateParams params) {
  begin_kernel();
  __shared__ float4 keys[kMost / 4], queries[kMost / 4];
  const StateRows run = params.states.runs[blockIdx.x / params.heads];
  if (run.num_rows == 0) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x);
  const int column = static_cast<int>(blockIdx.y) * kWarpThreads + lane;
  Columns<kMost, kScan> columns{params, run,    static_cast<int>(blockIdx.x) % params.heads,
                                lane,   column, column < params.value_dim};
  columns.load_state();
  const int end = run.first_row + run.num_rows;
  int capture = run.first_capture;
  auto next = columns.load_row(run.first_row);
  for (int row = run.first_row; row < end; ++row) {
    const auto mine = next;
#pragma unroll
    for (int i = 0; i < kMost / kWarpThreads; ++i) {
      reinterpret_cast<float*>(keys)[i * kWarpThreads + lane] = mine.key[i];
      reinterpret_cast<float*>(queries)[i * kWarpThreads + lane] = mine.query[i];
    }
    __syncwarp();
    if (row + 1 < end) {
      next = columns.load_row(row + 1);
    }
    const float out = columns.update(mine, keys, queries);
    if (columns.is_there) {
      params.out[(std::int64_t{row} * params.heads + columns.head) * params.value_dim + column] =
          out;
    }
    if (capture < run.first_capture + run.num_captures &&
        params.states.captures[capture].row == row) {
      columns.store_state(params.states.captures[capture++].to);
    }
    __syncwarp();
  }
  columns.store_state(run.to);
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

template <int kMost>
cudaError_t launch_update(const StateUpdateParams& params, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(params.states.num_runs * params.heads),
                    blocks_for(params.value_dim, kWarpThreads));
  return launch_early(params.of_scan ? update_kernel<kMost, true> : update_kernel<kMost, false>,
                      {blocks, kWarpThreads}, stream, params);
}

dim3 row_blocks(std::int64_t rows, std::int64_t width) {
  return {static_cast<unsigned>(rows), blocks_for(width, kThreads)};
}

}  // namespace

cudaError_t convolve(const ConvParams& params, cudaStream_t stream) {
  if (params.states.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(convolve_kernel, {row_blocks(params.states.rows, params.channels), kThreads},
                      stream, params);
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

cudaError_t update_states(const StateUpdateParams& params, cudaStream_t stream) {
  if (params.states.num_runs == 0) {
    return cudaSuccess;
  }
  if (params.key_dim > kMostKeyDim) {
    return cudaErrorInvalidValue;
  }
  return params.key_dim <= 32   ? launch_update<32>(params, stream)
         : params.key_dim <= 64 ? launch_update<64>(params, stream)
                                : launch_update<kMostKeyDim>(params, stream);
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
