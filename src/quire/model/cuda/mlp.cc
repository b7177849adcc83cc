#include "quire/model/cuda/mlp.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/cuda_error.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model::cuda {

using device::cuda::to_status;

bool Mlp::has(MlpKind kind) const {
  return config_.mlps.empty() ? kind == MlpKind::kDense
                              : std::ranges::find(config_.mlps, kind) != config_.mlps.end();
}

Status Mlp::reserve(std::int64_t rows, RecordedSteps& recorded) {
  const auto count = static_cast<std::size_t>(rows);
  const bool has_experts = has(MlpKind::kExperts);
  const auto inner = count * static_cast<std::size_t>(
                                 std::max(has(MlpKind::kDense) ? config_.intermediate_size : 0,
                                          has_experts ? config_.experts.shared_size : 0));
  QUIRE_TRY_STATUS(recorded.reserve(gate_up_, 2 * inner));
  QUIRE_TRY_STATUS(recorded.reserve(gated_, inner));
  if (!has_experts) {
    return {};
  }
  if (config_.experts.shared_size > 0) {
    QUIRE_TRY_STATUS(
        recorded.reserve(shared_, count * static_cast<std::size_t>(config_.hidden_size)));
    QUIRE_TRY_STATUS(recorded.reserve(shared_gates_, count));
  }
  return experts_.reserve(rows, recorded);
}

Status Mlp::run_pair(const MlpCall& call, const Pair& pair) {
  QUIRE_TRY_STATUS(products_.linear(pair.gate_up, call.normed, call.rows, gate_up_.data(), false));
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::gate_mul({.dtype = dtype_,
                                         .activation = config_.activation,
                                         .has_gates = config_.gates_mlp,
                                         .gate_up = gate_up_.data(),
                                         .rows = call.rows,
                                         .width = static_cast<std::int32_t>(pair.down.inputs),
                                         .out = gated_.data()},
                                        device_.compute_stream().get()),
                "gate_mul"));
  return products_.linear(pair.down, gated_.data(), call.rows, pair.out, pair.accumulate);
}

// Sets `shared_` and `shared_gates_`.
Status Mlp::run_shared(const MlpCall& call) {
  const DeviceExperts& experts = call.layer.experts;
  QUIRE_TRY_STATUS(run_pair(
      call,
      {.gate_up = experts.shared_gate_up, .down = experts.shared_down, .out = shared_.data()}));
  if (experts.shared_gate.data() == nullptr) {
    return {};
  }
  return to_status(kernels::cuda::route({.x = call.x,
                                         .norm = call.layer.mlp_norm.data(),
                                         .epsilon = static_cast<float>(config_.norm_epsilon),
                                         .weights = experts.shared_gate.data(),
                                         .rows = call.rows,
                                         .width = config_.hidden_size,
                                         .experts = 1,
                                         .logits = shared_gates_.data()},
                                        device_.compute_stream().get()),
                   "route");
}

// The MLP beside experts comes first: the rows that they add to may be the input of its gate.
Status Mlp::run(const MlpCall& call) {
  const DeviceExperts& experts = call.layer.experts;
  if (experts.router.data() == nullptr) {
    return run_pair(call, {.gate_up = call.layer.gate_up,
                           .down = call.layer.down,
                           .out = call.out,
                           .accumulate = call.accumulate});
  }
  const bool has_shared = config_.experts.shared_size > 0;
  if (has_shared) {
    QUIRE_TRY_STATUS(run_shared(call));
  }
  QUIRE_TRY_STATUS(experts_.run(call));
  if (!has_shared) {
    return {};
  }
  const bool has_gate = experts.shared_gate.data() != nullptr;
  return to_status(kernels::cuda::add_shared({.x = shared_.data(),
                                              .gates = has_gate ? shared_gates_.data() : nullptr,
                                              .rows = call.rows,
                                              .width = config_.hidden_size,
                                              .out = call.out},
                                             device_.compute_stream().get()),
                   "add_shared");
}

}  // namespace quire::model::cuda
