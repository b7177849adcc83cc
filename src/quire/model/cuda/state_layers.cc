#include "quire/model/cuda/state_layers.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/cuda_error.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/model/config.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"

namespace quire::model::cuda {

using device::cuda::to_status;
using kernels::cuda::RowGate;

Status StateLayers::reserve(std::int64_t rows, RecordedSteps& recorded) {
  const StateShape& shape = config_.state;
  const auto count = static_cast<std::size_t>(rows);
  const auto out = count * static_cast<std::size_t>(shape.out_width());
  QUIRE_TRY_STATUS(recorded.reserve(convolved_, count * static_cast<std::size_t>(shape.channels)));
  QUIRE_TRY_STATUS(
      recorded.reserve(gates_, count * 2 * static_cast<std::size_t>(shape.value_heads)));
  if (shape.kind != MixerKind::kShortConv) {
    QUIRE_TRY_STATUS(recorded.reserve(updated_, out));
  }
  return recorded.reserve(mixed_, out);
}

kernels::cuda::LayerStates StateLayers::states(const Call& call) const {
  const tensor::StateView& view = step_.states();
  return {.data = view.data + geometry_.offsets[static_cast<std::size_t>(call.group_index)],
          .stride = view.stride,
          .runs = step_.state_runs(),
          .num_runs = step_.shape().state_runs,
          .captures = step_.captures(),
          .run_of = step_.runs_of_rows(),
          .rows = rows()};
}

Status StateLayers::mix(const Call& call) {
  switch (config_.state.kind) {
    case MixerKind::kShortConv:
      return mix_short(call);
    case MixerKind::kStateScan:
      return mix_scan(call);
    default:
      return mix_delta(call);
  }
}

// Sets `convolved_`, and stores the last inputs.
Status StateLayers::convolve(const kernels::cuda::ConvParams& params) {
  QUIRE_TRY_STATUS(to_status(kernels::cuda::convolve(params, stream()), "convolve"));
  return to_status(kernels::cuda::keep_tails(params, stream()), "keep_tails");
}

Status StateLayers::gate(const kernels::cuda::RowGateParams& params) {
  return to_status(kernels::cuda::gate_rows(params, stream()), "gate_rows");
}

// Rows are [B, C, x]: mixed = C * convolution(B * x). The state is the last inputs B * x.
Status StateLayers::mix_short(const Call& call) {
  const std::int32_t channels = config_.state.channels;
  const std::int64_t width = config_.state.in_width();
  QUIRE_TRY_STATUS(convolve({.states = states(call),
                             .in = call.in,
                             .factor = call.in + std::int64_t{2} * channels,
                             .stride = width,
                             .weights = call.weights.conv.data(),
                             .bias = call.weights.conv_bias.data(),
                             .taps = config_.state.taps,
                             .channels = channels,
                             .out = convolved_.data()}));
  return gate({.x = convolved_.data(),
               .gate = RowGate::kPlain,
               .gates = call.in + channels,
               .stride = width,
               .rows = rows(),
               .width = channels,
               .dtype = dtype_,
               .rounded = mixed_.data()});
}

// Sets `updated_`, and stores the matrices.
Status StateLayers::update(const Call& call, const Channels& channels) {
  const StateShape& shape = config_.state;
  return to_status(kernels::cuda::update_states({.states = states(call),
                                                 .of_scan = shape.kind == MixerKind::kStateScan,
                                                 .x = convolved_.data(),
                                                 .channels = shape.channels,
                                                 .query = channels.query,
                                                 .key = channels.key,
                                                 .value = channels.value,
                                                 .heads = shape.value_heads,
                                                 .key_heads = shape.key_heads,
                                                 .keys_in_turn = shape.keys_in_turn,
                                                 .key_dim = shape.key_dim,
                                                 .value_dim = shape.value_dim,
                                                 .matrix = shape.tail_size(),
                                                 .gates = gates_.data(),
                                                 .skip = call.weights.skip.data(),
                                                 .out = updated_.data()},
                                                stream()),
                   "update_states");
}

// Norms `updated_` in so many parts of a row. A state space has a weight for each of them.
Status StateLayers::norm_heads(const Call& call, std::int32_t heads) {
  const auto width = static_cast<std::int32_t>(config_.state.out_width());
  const std::int32_t size = width / heads;
  return to_status(kernels::cuda::rms_norm_heads(
                       {.x = updated_.data(),
                        .stride = width,
                        .rows = rows(),
                        .heads = heads,
                        .head_dim = size,
                        .weight = call.weights.norm.data(),
                        .weight_stride = config_.state.kind == MixerKind::kStateScan ? size : 0,
                        .epsilon = static_cast<float>(config_.norm_epsilon)},
                       stream()),
                   "rms_norm_heads");
}

// Rows are [q, k, v, z], of which the first three are convolved. mixed = norm(updated) * silu(z).
Status StateLayers::mix_delta(const Call& call) {
  const StateShape& shape = config_.state;
  const std::int32_t keys_width = shape.key_heads * shape.key_dim;
  QUIRE_TRY_STATUS(convolve({.states = states(call),
                             .in = call.in,
                             .stride = shape.in_width(),
                             .weights = call.weights.conv.data(),
                             .bias = call.weights.conv_bias.data(),
                             .taps = shape.taps,
                             .channels = shape.channels,
                             .has_silu = true,
                             .out = convolved_.data()}));
  kernels::cuda::UnitHeadParams heads{
      .x = convolved_.data(),
      .stride = shape.channels,
      .rows = rows(),
      .heads = shape.key_heads,
      .head_dim = shape.key_dim,
      .factor = 1.0f / std::sqrt(static_cast<float>(shape.key_dim))};
  QUIRE_TRY_STATUS(to_status(kernels::cuda::make_unit_heads(heads, stream()), "make_unit_heads"));
  heads.x += keys_width;
  heads.factor = 1;
  QUIRE_TRY_STATUS(to_status(kernels::cuda::make_unit_heads(heads, stream()), "make_unit_heads"));
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::make_state_gates({.raw = gates_.data(),
                                                 .stride = std::int64_t{2} * shape.value_heads,
                                                 .decay = call.weights.decay.data(),
                                                 .shift = call.weights.decay_shift.data(),
                                                 .rows = rows(),
                                                 .heads = shape.value_heads,
                                                 .gates = gates_.data()},
                                                stream()),
                "make_state_gates"));
  QUIRE_TRY_STATUS(update(call, {.query = 0, .key = keys_width, .value = 2 * keys_width}));
  QUIRE_TRY_STATUS(norm_heads(call, shape.value_heads));
  return gate({.x = updated_.data(),
               .gate = RowGate::kSilu,
               .gates = call.in + shape.channels,
               .stride = shape.in_width(),
               .rows = rows(),
               .width = static_cast<std::int32_t>(shape.out_width()),
               .dtype = dtype_,
               .rounded = mixed_.data()});
}

// Rows are [z, x, B, C, steps], of which x, B and C are convolved. mixed = norm of groups(updated *
// silu(z)).
Status StateLayers::mix_scan(const Call& call) {
  const StateShape& shape = config_.state;
  const auto inner = static_cast<std::int32_t>(shape.out_width());
  const std::int32_t keys_width = shape.key_heads * shape.key_dim;
  QUIRE_TRY_STATUS(convolve({.states = states(call),
                             .in = call.in + inner,
                             .stride = shape.in_width(),
                             .weights = call.weights.conv.data(),
                             .bias = call.weights.conv_bias.data(),
                             .taps = shape.taps,
                             .channels = shape.channels,
                             .has_silu = true,
                             .out = convolved_.data()}));
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::make_state_gates({.of_scan = true,
                                                 .raw = call.in + inner + shape.channels,
                                                 .stride = shape.in_width(),
                                                 .decay = call.weights.decay.data(),
                                                 .shift = call.weights.decay_shift.data(),
                                                 .least = shape.least_step,
                                                 .most = shape.most_step,
                                                 .rows = rows(),
                                                 .heads = shape.value_heads,
                                                 .gates = gates_.data()},
                                                stream()),
                "make_state_gates"));
  QUIRE_TRY_STATUS(update(call, {.query = inner + keys_width, .key = inner, .value = 0}));
  QUIRE_TRY_STATUS(gate({.x = updated_.data(),
                         .gate = RowGate::kSilu,
                         .gates = call.in,
                         .stride = shape.in_width(),
                         .rows = rows(),
                         .width = inner,
                         .out = updated_.data()}));
  QUIRE_TRY_STATUS(norm_heads(call, shape.key_heads));
  return gate({.x = updated_.data(),
               .rows = rows(),
               .width = inner,
               .dtype = dtype_,
               .rounded = mixed_.data()});
}

}  // namespace quire::model::cuda
