// Updates of states on the device: convolutions of the last rows, the gated delta rule and state
// spaces. All in fp32, strictly in order of the rows. Sums over the keys of a matrix are in the
// order of state_parts.h, others in that of kernels/state_ops.h. So a state depends on the rows
// before it alone, however they are cut into steps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// The rows of one sequence in a step, and the states before and behind them.
struct StateRows {
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;  // 0: nothing to do
  std::int32_t from = -1;     // state before the first row; -1: of no token
  std::int32_t to = 0;        // where the state behind the last row is stored; may be `from`
  std::int32_t first_capture = 0;
  std::int32_t num_captures = 0;
};

// A state that is kept as it is behind a row of the step. It is no StateRows::from or to.
struct CapturedState {
  std::int32_t row = 0;
  std::int32_t to = 0;
};

// The states of a step, one layer's part of them.
struct LayerStates {
  std::byte* data = nullptr;  // the part in state 0
  std::ptrdiff_t stride = 0;  // bytes from state to state
  const StateRows* runs = nullptr;
  std::int32_t num_runs = 0;
  const CapturedState* captures = nullptr;
  const std::int32_t* run_of = nullptr;  // [rows]; -1: a row of no sequence
  std::int64_t rows = 0;
};

// A convolution over the last `taps` inputs of a sequence, whose last taps - 1 a state begins with,
// the newest last. Inputs are in[r][c], times factor[r][c] where there is one.
struct ConvParams {
  LayerStates states;
  const float* in = nullptr;
  const float* factor = nullptr;   // of the stride of `in`, or null
  std::int64_t stride = 0;         // from row to row
  const float* weights = nullptr;  // [taps, channels], of the newest input last
  const float* bias = nullptr;     // [channels] or null
  std::int32_t taps = 0;
  std::int32_t channels = 0;
  bool has_silu = false;
  float* out = nullptr;  // [rows, channels]; zeros in rows of no sequence
};
[[nodiscard]] cudaError_t convolve(const ConvParams& params, cudaStream_t stream);
// Stores the last inputs behind the rows at which states are kept and behind the last row of each
// run. Behind convolve(), which reads those before them.
[[nodiscard]] cudaError_t keep_tails(const ConvParams& params, cudaStream_t stream);

// Sets each head to head / sqrt(sum of its squares + 1e-6) * factor, in place.
struct UnitHeadParams {
  float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  float factor = 1;
};
[[nodiscard]] cudaError_t make_unit_heads(const UnitHeadParams& params, cudaStream_t stream);

// Gates of a delta rule are sigmoid(b) and exp(decay * softplus(a + shift)), of raw rows of b and
// a. Those of a state space are a step = softplus(raw + shift) within its bounds, and exp(decay *
// step).
struct StateGateParams {
  bool of_scan = false;
  const float* raw = nullptr;  // [rows, 2 * heads], or of a state space [rows, heads]
  std::int64_t stride = 0;     // of raw
  const float* decay = nullptr;
  const float* shift = nullptr;
  double least = 0, most = 0;  // bounds of a step
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  float* gates = nullptr;  // [rows, 2 * heads]; may be `raw`
};
[[nodiscard]] cudaError_t make_state_gates(const StateGateParams& params, cudaStream_t stream);

inline constexpr int kMostKeyDim = 128;  // of update_states()

// Runs each head of each sequence through its rows: out = the delta rule's or state space's.
struct StateUpdateParams {
  LayerStates states;
  bool of_scan = false;
  const float* x = nullptr;  // [rows, channels] convolved
  std::int32_t channels = 0;
  std::int32_t query = 0, key = 0, value = 0;  // first channels
  std::int32_t heads = 0, key_heads = 0;
  bool keys_in_turn = false;  // head h has key head h % key_heads
  std::int32_t key_dim = 0;   // at most kMostKeyDim
  std::int32_t value_dim = 0;
  std::int64_t matrix = 0;       // floats of a state before its matrices
  const float* gates = nullptr;  // [rows, 2 * heads]
  const float* skip = nullptr;   // [heads], of a state space
  float* out = nullptr;          // [rows, heads * value_dim]
};
[[nodiscard]] cudaError_t update_states(const StateUpdateParams& params, cudaStream_t stream);

// Gate of a row's numbers: none, itself, or its silu.
enum class RowGate : std::uint8_t { kNone, kPlain, kSilu };

// Multiplies x [rows, width] by gates. Results are fp32 or rounded.
struct RowGateParams {
  const float* x = nullptr;
  RowGate gate = RowGate::kNone;
  const float* gates = nullptr;
  std::int64_t stride = 0;  // of gates
  std::int64_t rows = 0;
  std::int32_t width = 0;
  float* out = nullptr;  // [rows, width], may be x; or null
  tensor::DType dtype = tensor::DType::kBFloat16;
  Half* rounded = nullptr;  // [rows, width] or null
};
[[nodiscard]] cudaError_t gate_rows(const RowGateParams& params, cudaStream_t stream);

// Multiplies rows of 16-bit numbers by sigmoid(gates), in place.
struct OutputGateParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  Half* x = nullptr;  // [rows, width]
  const float* gates = nullptr;
  std::int64_t stride = 0;  // of gates
  std::int64_t rows = 0;
  std::int32_t width = 0;
};
[[nodiscard]] cudaError_t gate_output(const OutputGateParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
