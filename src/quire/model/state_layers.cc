#include "quire/model/state_layers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/parallel.h"
#include "quire/kernels/state_ops.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_maps.h"
#include "quire/model/state_shape.h"
#include "quire/model/state_weights.h"

namespace quire::model {
namespace {

using kernels::ConvRows;
using kernels::ConvWeights;
using kernels::StridedRows;

// Stores the last inputs behind the rows at which states are kept, then those behind the last row.
template <class Place>
void keep_tails(const ConvWeights& conv, const ConvRows& rows, const StateRun& run, Place place) {
  for (const StateCapture& capture : run.captures) {
    kernels::copy_tail(conv, rows, capture.row - run.first_row + 1, place(capture.to));
  }
  kernels::copy_tail(conv, rows, run.num_rows, place(run.to));
}

}  // namespace

float* StateLayers::place(const ForwardBatch& batch, const LayerPlan& plan,
                          std::int32_t state) const {
  std::byte* begin = batch.states.data + state * batch.states.stride +
                     geometry_.offsets[static_cast<std::size_t>(plan.group_index)];
  return reinterpret_cast<float*>(begin);
}

StateLayers::Places StateLayers::places(const ForwardBatch& batch, const LayerPlan& plan,
                                        const StateRun& run) const {
  return {.from = run.from < 0 ? nullptr : place(batch, plan, run.from),
          .to = place(batch, plan, run.to)};
}

void StateLayers::mix(const ForwardBatch& batch, const LayerPlan& plan, const StateWeights& weights,
                      const Rows& rows) {
  if (plan.mixer == MixerKind::kShortConv) {
    mix_short(batch, plan, weights, rows);
  } else if (plan.mixer == MixerKind::kStateScan) {
    mix_scan(batch, plan, weights, rows);
  } else {
    mix_delta(batch, plan, weights, rows);
  }
}

// Rows are [B, C, x]: out = C * convolution(B * x). The state is the last inputs B * x.
void StateLayers::mix_short(const ForwardBatch& batch, const LayerPlan& plan,
                            const StateWeights& weights, const Rows& rows) {
  const std::int64_t channels = config_.state.channels;
  const std::int64_t width = config_.state.in_width();
  const StridedRows b{rows.in.data(), width};
  const StridedRows c{rows.in.data() + channels, width};
  const StridedRows x{rows.in.data() + 2 * channels, width};
  const StridedRows out{rows.out.data(), channels};
  const auto all = std::ssize(batch.token_ids);
  kernels::multiply_rows(context_, b, x, all, channels);
  const ConvWeights conv{.weights = weights.conv, .bias = weights.conv_bias, .channels = channels};
  for (const StateRun& run : batch.state_runs) {
    const Places states = places(batch, plan, run);
    const ConvRows own{{b.row(run.first_row), width}, run.num_rows, states.from};
    kernels::convolve_rows(context_, conv, own, {out.row(run.first_row), channels});
    keep_tails(conv, own, run, [&](std::int32_t state) { return place(batch, plan, state); });
  }
  kernels::multiply_rows(context_, out, c, all, channels);
}

void StateLayers::convolve(const ForwardBatch& batch, const LayerPlan& plan,
                           const StateWeights& weights, const Rows& rows, std::int64_t first) {
  const std::int64_t width = config_.state.in_width();
  const std::int64_t channels = config_.state.channels;
  convolved_.require(batch.token_ids.size() * static_cast<std::size_t>(channels));
  const ConvWeights conv{
      .weights = weights.conv, .bias = weights.conv_bias, .channels = channels, .silu = true};
  for (const StateRun& run : batch.state_runs) {
    const Places states = places(batch, plan, run);
    const ConvRows own{
        {rows.in.data() + run.first_row * width + first, width}, run.num_rows, states.from};
    kernels::convolve_rows(context_, conv, own,
                           {convolved_.data() + run.first_row * channels, channels});
    keep_tails(conv, own, run, [&](std::int32_t state) { return place(batch, plan, state); });
  }
}

// Multiplies outputs by silu of columns [first, first + width) of the rows that came in.
void StateLayers::gate_out(const Rows& rows, std::int64_t first) {
  const std::int64_t width = config_.state.in_width();
  const std::int64_t out_width = config_.state.out_width();
  const auto gate = context_.table->gate_mul[static_cast<std::size_t>(kernels::Activation::kSilu)];
  kernels::parallel_ranges(context_, std::ssize(rows.out) / out_width, 4 * out_width,
                           [&](std::int64_t begin, std::int64_t end) {
                             for (std::int64_t row = begin; row < end; ++row) {
                               float* out = rows.out.data() + row * out_width;
                               gate({.gate = rows.in.data() + row * width + first,
                                     .up = out,
                                     .count = out_width,
                                     .out = out});
                             }
                           });
}

// Rows are [q, k, v, z], of which the first three are convolved.
void StateLayers::mix_delta(const ForwardBatch& batch, const LayerPlan& plan,
                            const StateWeights& weights, const Rows& rows) {
  const StateShape& shape = config_.state;
  const std::int64_t channels = shape.channels;
  const std::int64_t keys_width = std::int64_t{shape.key_heads} * shape.key_dim;
  const auto all = std::ssize(batch.token_ids);
  convolve(batch, plan, weights, rows, 0);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  kernels::l2_norm_heads(context_, {convolved_.data(), channels}, all, shape.key_heads,
                         shape.key_dim, scale);
  kernels::l2_norm_heads(context_, {convolved_.data() + keys_width, channels}, all, shape.key_heads,
                         shape.key_dim, 1.0f);
  kernels::delta_gates(context_, weights.decay, weights.decay_shift, all, rows.gates);
  const Channels at{.query = 0, .key = keys_width, .value = 2 * keys_width};
  update_heads(batch, plan, at, {}, rows);
  grow_maps(batch, plan, at, rows);
  // out = norm(out) * silu(z)
  kernels::rms_norm_heads(context_, {rows.out, shape.out_width(), all, shape.value_heads},
                          weights.norm, config_.norm_epsilon);
  gate_out(rows, channels);
}

// Rows are [z, x, B, C, steps], of which x, B and C are convolved.
void StateLayers::mix_scan(const ForwardBatch& batch, const LayerPlan& plan,
                           const StateWeights& weights, const Rows& rows) {
  const StateShape& shape = config_.state;
  const std::int64_t inner = shape.out_width();
  const std::int64_t width = shape.in_width();
  const auto all = std::ssize(batch.token_ids);
  convolve(batch, plan, weights, rows, inner);
  kernels::scan_gates(context_,
                      {weights.decay, weights.decay_shift, shape.least_step, shape.most_step},
                      {rows.in.data() + inner + shape.channels, width}, all, rows.gates);
  const std::int64_t keys_width = std::int64_t{shape.key_heads} * shape.key_dim;
  const Channels at{.query = inner + keys_width, .key = inner, .value = 0};
  update_heads(batch, plan, at, weights.skip, rows);
  grow_maps(batch, plan, at, rows);
  // out = norm of groups(out * silu(z))
  gate_out(rows, 0);
  const auto size = static_cast<std::size_t>(inner / shape.key_heads);
  for (std::size_t group = 0; std::cmp_less(group, all == 0 ? 0 : shape.key_heads); ++group) {
    kernels::rms_norm_heads(context_, {rows.out.subspan(group * size), inner, all, 1},
                            std::span(weights.norm).subspan(group * size, size),
                            config_.norm_epsilon);
  }
}

// Adds the rows to the maps of the chunks that they belong to.
void StateLayers::grow_maps(const ForwardBatch& batch, const LayerPlan& plan,
                            const Channels& channels, const Rows& rows) {
  const StateShape& shape = config_.state;
  for (const StateRun& run : batch.state_runs) {
    if (run.maps == nullptr) {
      continue;
    }
    const float* const row = convolved_.data() + run.first_row * std::int64_t{shape.channels};
    run.maps->grow(
        context_, static_cast<std::size_t>(plan.group_index),
        {.key = row + channels.key,
         .value = row + channels.value,
         .stride = shape.channels,
         .gates = rows.gates.data() + std::int64_t{2} * run.first_row * shape.value_heads,
         .first = run.first_token,
         .count = run.num_rows});
  }
}

// Runs each head of each sequence through its rows. Rows are cut where a state is kept.
void StateLayers::update_heads(const ForwardBatch& batch, const LayerPlan& plan,
                               const Channels& at_channel, std::span<const float> skip,
                               const Rows& rows) {
  const StateShape& shape = config_.state;
  const std::int64_t size = std::int64_t{shape.key_dim} * shape.value_dim;
  const std::int64_t channels = shape.channels;
  const std::int64_t out_width = shape.out_width();
  const auto kernel = plan.mixer == MixerKind::kStateScan ? context_.table->state_scan
                                                          : context_.table->gated_delta;
  const auto update = [&](const StateRun& run, std::int32_t head) {
    const std::int64_t at = shape.tail_size() + head * size;
    const Places states = places(batch, plan, run);
    float* state = states.to + at;
    if (states.from == nullptr) {
      std::fill_n(state, size, 0.0f);
    } else if (states.from != states.to) {
      std::copy_n(states.from + at, size, state);
    }
    const std::int64_t key = std::int64_t{shape.key_head(head)} * shape.key_dim;
    const auto step = [&](std::int64_t first, std::int64_t last) {
      const float* gates = rows.gates.data() + first * 2 * shape.value_heads + head;
      const float* row = convolved_.data() + first * channels;
      kernel({.query = row + at_channel.query + key,
              .key = row + at_channel.key + key,
              .value = row + at_channel.value + std::int64_t{head} * shape.value_dim,
              .decay = gates + shape.value_heads,
              .beta = gates,
              .query_stride = channels,
              .key_stride = channels,
              .value_stride = channels,
              .gate_stride = std::ptrdiff_t{2} * shape.value_heads,
              .state = state,
              .state_stride = shape.value_dim,
              .rows = last - first,
              .key_dim = shape.key_dim,
              .columns = shape.value_dim,
              .out = rows.out.data() + first * out_width + std::int64_t{head} * shape.value_dim,
              .out_stride = out_width,
              .skip = skip.empty() ? 0.0f : skip[static_cast<std::size_t>(head)]});
    };
    std::int64_t first = run.first_row;
    for (const StateCapture& capture : run.captures) {
      step(first, capture.row + 1);
      std::copy_n(state, size, place(batch, plan, capture.to) + at);
      first = capture.row + 1;
    }
    step(first, run.first_row + run.num_rows);
  };
  const auto heads = std::int64_t{shape.value_heads};
  const std::int64_t items = std::ssize(batch.state_runs) * heads;
  const std::int64_t mean_rows =
      items == 0 ? 0 : std::ssize(batch.token_ids) / std::ssize(batch.state_runs) + 1;
  kernels::parallel_ranges(context_, items, mean_rows * size,
                           [&](std::int64_t begin, std::int64_t end) {
                             for (std::int64_t item = begin; item < end; ++item) {
                               update(batch.state_runs[static_cast<std::size_t>(item / heads)],
                                      static_cast<std::int32_t>(item % heads));
                             }
                           });
}

}  // namespace quire::model
