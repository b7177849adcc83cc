#include "quire/model/state_layers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "quire/base/check.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/parallel.h"
#include "quire/kernels/state_ops.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_log.h"
#include "quire/model/state_maps.h"
#include "quire/model/state_shape.h"
#include "quire/model/state_weights.h"
#include "quire/tensor/state_view.h"

namespace quire::model {
namespace {

using kernels::ConvRows;
using kernels::ConvWeights;
using kernels::StridedRows;

// Stores the last inputs behind the rows at which states are kept, then those behind the last
// certain row.
template <class Place>
void keep_tails(const ConvWeights& conv, const ConvRows& rows, const StateRun& run, Place place) {
  for (const StateCapture& capture : run.captures) {
    kernels::copy_tail(conv.tail(), rows, capture.row - run.first_row + 1, place(capture.to));
  }
  kernels::copy_tail(conv.tail(), rows, run.num_rows - run.num_assumed, place(run.to));
}

auto head_kernel(const kernels::KernelContext& context, MixerKind kind) {
  return kind == MixerKind::kStateScan ? context.table->state_scan : context.table->gated_delta;
}

}  // namespace

float* StateLayers::place(const tensor::StateView& states, std::size_t layer,
                          std::int32_t state) const {
  return reinterpret_cast<float*>(states.data + state * states.stride + geometry_.offsets[layer]);
}

StateLayers::Places StateLayers::places(const ForwardBatch& batch, const LayerPlan& plan,
                                        const StateRun& run) const {
  const auto layer = static_cast<std::size_t>(plan.group_index);
  return {.from = run.from < 0 ? nullptr : place(batch.states, layer, run.from),
          .to = place(batch.states, layer, run.to)};
}

void StateLayers::begin(const ForwardBatch& batch) {
  log_.begin(batch);
  if (log_.has_rows()) {
    const StateShape& shape = config_.state;
    const auto threads = static_cast<std::size_t>(context_.pool->threads());
    ahead_.require(threads * static_cast<std::size_t>(shape.key_dim * shape.value_dim));
    dropped_.require(threads * static_cast<std::size_t>(log_.longest_run() * shape.value_dim));
  }
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
  const auto layer = static_cast<std::size_t>(plan.group_index);
  log_.keep_inputs(layer, b);
  convolve_runs(batch, plan, conv, b, out);
  kernels::multiply_rows(context_, out, c, all, channels);
}

// Returns the last inputs before the rows of a branch. `certain` has those before any assumed row.
const float* StateLayers::tail_before(const StateBranch& branch, const kernels::TailShape& shape,
                                      const StridedRows& in, const float* certain) {
  tail_.require(static_cast<std::size_t>((shape.taps - 1) * shape.channels));
  for (std::int64_t i = 0; i < shape.taps - 1; ++i) {
    const std::int64_t ancestor = std::ssize(branch.ancestors) - (shape.taps - 1) + i;
    const float* const input = ancestor < 0
                                   ? certain + (shape.taps - 1 + ancestor) * shape.channels
                                   : in.row(branch.ancestors[static_cast<std::size_t>(ancestor)]);
    std::copy_n(input, shape.channels, tail_.data() + i * shape.channels);
  }
  return tail_.data();
}

void StateLayers::convolve_runs(const ForwardBatch& batch, const LayerPlan& plan,
                                const ConvWeights& conv, const StridedRows& in,
                                const StridedRows& out) {
  const auto layer = static_cast<std::size_t>(plan.group_index);
  for (const StateRun& run : batch.state_runs) {
    const Places states = places(batch, plan, run);
    const ConvRows own{{in.row(run.first_row), in.stride}, run.num_rows, states.from};
    kernels::convolve_rows(context_, conv, own, {out.row(run.first_row), out.stride});
    keep_tails(conv, own, run,
               [&](std::int32_t state) { return place(batch.states, layer, state); });
    for (const StateBranch& branch : run.branches) {
      const float* const tail = tail_before(branch, conv.tail(), in, states.to);
      kernels::convolve_rows(context_, conv,
                             {{in.row(branch.first_row), in.stride}, branch.num_rows, tail},
                             {out.row(branch.first_row), out.stride});
    }
  }
}

void StateLayers::convolve(const ForwardBatch& batch, const LayerPlan& plan,
                           const StateWeights& weights, const Rows& rows, std::int64_t first) {
  const std::int64_t width = config_.state.in_width();
  const std::int64_t channels = config_.state.channels;
  convolved_.require(batch.token_ids.size() * static_cast<std::size_t>(channels));
  const ConvWeights conv{
      .weights = weights.conv, .bias = weights.conv_bias, .channels = channels, .silu = true};
  const StridedRows in{rows.in.data() + first, width};
  log_.keep_inputs(static_cast<std::size_t>(plan.group_index), in);
  convolve_runs(batch, plan, conv, in, {convolved_.data(), channels});
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
  update_heads(batch, plan, {}, rows);
  grow_maps(batch, plan, rows);
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
  update_heads(batch, plan, weights.skip, rows);
  grow_maps(batch, plan, rows);
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
void StateLayers::grow_maps(const ForwardBatch& batch, const LayerPlan& plan, const Rows& rows) {
  const StateShape& shape = config_.state;
  const Channels at = channels();
  for (const StateRun& run : batch.state_runs) {
    if (run.maps == nullptr) {
      continue;
    }
    const float* const row = convolved_.data() + run.first_row * std::int64_t{shape.channels};
    run.maps->grow(
        context_, static_cast<std::size_t>(plan.group_index),
        {.key = row + at.key,
         .value = row + at.value,
         .stride = shape.channels,
         .gates = rows.gates.data() + std::int64_t{2} * run.first_row * shape.value_heads,
         .first = run.first_token,
         .count = run.num_rows});
  }
}

StateLayers::Channels StateLayers::channels() const {
  const StateShape& shape = config_.state;
  const std::int64_t keys_width = std::int64_t{shape.key_heads} * shape.key_dim;
  if (shape.kind == MixerKind::kStateScan) {
    return {.query = shape.out_width() + keys_width, .key = shape.out_width(), .value = 0};
  }
  return {.query = 0, .key = keys_width, .value = 2 * keys_width};
}

// Returns the update of a head by rows that begin at `rows`, without its state and its output.
kernels::DeltaTask StateLayers::task_of(const HeadRows& rows, std::int32_t head) const {
  const StateShape& shape = config_.state;
  const Channels at = channels();
  const std::int64_t key = std::int64_t{shape.key_head(head)} * shape.key_dim;
  return {.query = rows.convolved + at.query + key,
          .key = rows.convolved + at.key + key,
          .value = rows.convolved + at.value + std::int64_t{head} * shape.value_dim,
          .decay = rows.gates + shape.value_heads + head,
          .beta = rows.gates + head,
          .query_stride = rows.stride,
          .key_stride = rows.stride,
          .value_stride = rows.stride,
          .gate_stride = rows.gate_stride,
          .state_stride = shape.value_dim,
          .key_dim = shape.key_dim,
          .columns = shape.value_dim};
}

// Runs each head of each sequence through its rows. Rows are cut where a state is kept, and where
// assumed ones begin. Every branch goes on from the last certain row, through its ancestors.
void StateLayers::update_heads(const ForwardBatch& batch, const LayerPlan& plan,
                               std::span<const float> skip, const Rows& rows) {
  const StateShape& shape = config_.state;
  const std::int64_t size = std::int64_t{shape.key_dim} * shape.value_dim;
  const std::int64_t out_width = shape.out_width();
  const std::ptrdiff_t gates = std::ptrdiff_t{2} * shape.value_heads;
  const auto layer = static_cast<std::size_t>(plan.group_index);
  const auto kernel = head_kernel(context_, shape.kind);
  const auto update = [&](const StateRun& run, std::int32_t head, int thread) {
    const std::int64_t at = shape.tail_size() + head * size;
    const Places states = places(batch, plan, run);
    float* state = states.to + at;
    if (states.from == nullptr) {
      std::fill_n(state, size, 0.0f);
    } else if (states.from != states.to) {
      std::copy_n(states.from + at, size, state);
    }
    const auto step = [&](float* advanced, std::int64_t first, std::int64_t last) {
      kernels::DeltaTask task = task_of({convolved_.data() + first * shape.channels, shape.channels,
                                         rows.gates.data() + first * gates, gates},
                                        head);
      task.state = advanced;
      task.rows = last - first;
      task.out = rows.out.data() + first * out_width + std::int64_t{head} * shape.value_dim;
      task.out_stride = out_width;
      task.skip = skip.empty() ? 0.0f : skip[static_cast<std::size_t>(head)];
      kernel(task);
    };
    std::int64_t first = run.first_row;
    for (const StateCapture& capture : run.captures) {
      step(state, first, capture.row + 1);
      std::copy_n(state, size, place(batch.states, layer, capture.to) + at);
      first = capture.row + 1;
    }
    step(state, first, run.first_assumed());
    if (run.num_assumed == 0) {
      return;
    }
    float* const ahead = ahead_.data() + thread * size;
    std::copy_n(state, size, ahead);
    step(ahead, run.first_assumed(), run.first_row + run.num_rows);
    for (const StateBranch& branch : run.branches) {
      std::copy_n(state, size, ahead);
      for (const std::int32_t row : branch.ancestors) {
        step(ahead, row, row + 1);  // its output has the bits that it has
      }
      step(ahead, branch.first_row, branch.first_row + branch.num_rows);
    }
  };
  log_.keep_rows(layer, convolved_.data(), rows.gates.data());
  const auto heads = std::int64_t{shape.value_heads};
  const std::int64_t items = std::ssize(batch.state_runs) * heads;
  const std::int64_t mean_rows =
      items == 0 ? 0 : std::ssize(batch.token_ids) / std::ssize(batch.state_runs) + 1;
  kernels::parallel_ranges(context_, items, mean_rows * size,
                           [&](std::int64_t begin, std::int64_t end, int thread) {
                             for (std::int64_t item = begin; item < end; ++item) {
                               update(batch.state_runs[static_cast<std::size_t>(item / heads)],
                                      static_cast<std::int32_t>(item % heads), thread);
                             }
                           });
}

// Advances one head of one layer, and with head 0 the last inputs of the layer's convolution.
void StateLayers::advance_head(std::size_t layer, const RightRows& right, std::int32_t head,
                               int thread) {
  const StateShape& shape = config_.state;
  const StateLog::Run& run = log_.run(right.run);
  float* const state = place(log_.states(), layer, run.state);
  if (head == 0) {
    const ConvRows rows{{log_.inputs(layer, run.first), log_.stride()}, right.count, state};
    kernels::copy_tail({.taps = shape.taps, .channels = shape.channels}, rows, right.count, state);
  }
  if (shape.kind == MixerKind::kShortConv) {
    return;
  }
  const std::int64_t size = std::int64_t{shape.key_dim} * shape.value_dim;
  kernels::DeltaTask task = task_of({log_.convolved(layer, run.first), log_.stride(),
                                     log_.gates(layer, run.first), log_.stride()},
                                    head);
  task.state = state + shape.tail_size() + head * size;
  task.rows = right.count;
  task.out = dropped_.data() + std::int64_t{thread} * log_.longest_run() * shape.value_dim;
  task.out_stride = shape.value_dim;
  head_kernel(context_, shape.kind)(task);
}

void StateLayers::advance(std::span<const RightRows> right) {
  const StateShape& shape = config_.state;
  const std::int64_t heads = std::max(shape.value_heads, 1);
  const std::int64_t items = std::ssize(geometry_.offsets) * heads;
  const std::int64_t elements = shape.tail_size() + std::int64_t{shape.key_dim} * shape.value_dim;
  for (const RightRows& rows : right) {
    QUIRE_CHECK(rows.count <= log_.run(rows.run).count, "more rows were right than were assumed");
    if (rows.branch != nullptr) {
      log_.take_branch(rows.run, *rows.branch, rows.count);
    }
    kernels::parallel_ranges(context_, items, rows.count * elements,
                             [&](std::int64_t begin, std::int64_t end, int thread) {
                               for (std::int64_t item = begin; item < end; ++item) {
                                 advance_head(static_cast<std::size_t>(item / heads), rows,
                                              static_cast<std::int32_t>(item % heads), thread);
                               }
                             });
  }
}

}  // namespace quire::model
