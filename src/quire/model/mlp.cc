#include "quire/model/mlp.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/parallel.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/layer_plan.h"
#include "quire/model/mlp_input.h"
#include "quire/model/step_rows.h"

namespace quire::model {
namespace {

// From so many rows on gate and up of a step would not fit the caches.
constexpr std::int64_t kGatedRows = 64;

}  // namespace

// Computes out = down(activation(gate(x)) * up(x)) of the two matrices of a pair. Without gates up
// stands for both.
void Mlp::run_pair(const kernels::KernelContext& context, const ModelConfig& config,
                   const Call& call, const Pair& pair, kernels::LinearScratch& scratch) {
  const kernels::PackedWeights& first = pair.first.weights;
  const kernels::PackedWeights& down = pair.down.weights;
  const kernels::Epilogue last = {.bias = pair.down.bias, .accumulate = call.accumulate};
  const kernels::OutputRows out = {call.out, down.columns()};
  pack_mlp_input(context, config, {call.layer.mlp_norm, call.x, call.rows}, first.format(),
                 packed_);
  if (config.gates_mlp && call.rows >= kGatedRows && kernels::can_gate(first)) {
    kernels::linear_gated(context, first, packed_, pair.first.bias,
                          {packed_gated_, down.format(), call.plan.activation}, scratch);
    kernels::linear(context, down, packed_gated_, out, last, scratch);
    return;
  }
  const auto both = rows_in(both_, call.rows, first.columns());
  kernels::linear(context, first, packed_, {both, first.columns()}, {.bias = pair.first.bias},
                  scratch);
  const auto inner = rows_in(inner_, call.rows, down.depth());
  if (config.gates_mlp) {
    kernels::gate_mul(context, call.plan.activation, both, call.rows, inner);
  } else {
    kernels::gate_self(context, call.plan.activation, both, inner);
  }
  kernels::pack_rows(context, down.format(), {inner, down.depth(), call.rows, down.depth()},
                     packed_);
  kernels::linear(context, down, packed_, out, last, scratch);
}

// Sets `shared_` to the MLP beside experts, times the sigmoid of its gate where it has one.
void Mlp::run_shared(const kernels::KernelContext& context, const ModelConfig& config,
                     const Call& call, kernels::LinearScratch& scratch) {
  const std::int64_t hidden = config.hidden_size;
  const auto shared = rows_in(shared_, call.rows, hidden);
  Call apart = call;
  apart.out = shared;
  apart.accumulate = false;
  run_pair(context, config, apart, {call.layer.shared.gate_up, call.layer.shared.down}, scratch);
  if (config.experts.has_norms) {
    kernels::rms_norm(context, shared, call.layer.shared_out_norm, config.norm_epsilon, call.rows,
                      shared);
  }
  if (!config.experts.gates_shared) {
    return;
  }
  const kernels::PackedWeights& gate = call.layer.shared_gate.weights;
  const auto gates = rows_in(gates_, call.rows, 1);
  pack_mlp_input(context, config, {call.layer.mlp_norm, call.x, call.rows}, gate.format(), packed_);
  kernels::linear(context, gate, packed_, {gates, 1}, {}, scratch);
  kernels::parallel_ranges(context, call.rows, hidden, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const double logit = gates[static_cast<std::size_t>(row)];
      const auto factor = static_cast<float>(1.0 / (1.0 + std::exp(-logit)));
      float* values = shared.data() + row * hidden;
      for (std::int64_t i = 0; i < hidden; ++i) {
        values[i] *= factor;
      }
    }
  });
}

// The MLP beside experts comes first: what they add to may be their input.
void Mlp::run(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
              kernels::LinearScratch& scratch) {
  if (call.plan.mlp == MlpKind::kDense) {
    run_pair(context, config, call, {call.layer.gate_up, call.layer.down}, scratch);
    return;
  }
  const bool has_shared = config.experts.shared_size > 0;
  if (has_shared) {
    run_shared(context, config, call, scratch);
  }
  experts_.run(context, config, call, scratch);
  if (config.experts.has_norms) {
    kernels::rms_norm(context, call.out, call.layer.experts_out_norm, config.norm_epsilon,
                      call.rows, call.out);
  }
  if (has_shared) {
    kernels::add_scaled(context, rows_in(shared_, call.rows, config.hidden_size), 1.0f, call.out);
  }
}

}  // namespace quire::model
