#include "quire/model/cuda/layer_attention.h"

#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/kernels/cuda/kv_seal.h"
#include "quire/kernels/cuda/rotary.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::model::cuda {

using attention::cuda::AttentionArgs;
using device::cuda::to_status;
using kernels::cuda::Half;
using tensor::PagedKVView;

namespace {

constexpr std::ptrdiff_t kElement = sizeof(Half);

// Where a block's scales of V lie, in words, if tokens have scales.
std::ptrdiff_t v_scale_offset(const PagedKVView& view) {
  return view.scale_offset / kElement + view.stored_block_tokens();
}

constexpr RopeKind kTurningRopes[] = {RopeKind::kMain, RopeKind::kLocal};

std::size_t index_of(RopeKind rope) { return static_cast<std::size_t>(rope); }

bool is_plain(const PagedKVView& view) { return view.format == tensor::KVFormat::kPlain; }

}  // namespace

const kernels::RotaryConfig* LayerAttention::rotary_of(RopeKind rope) const {
  const auto& ropes = config_.ropes;
  const auto has = [&](RopeKind kind) { return std::ranges::find(ropes, kind) != ropes.end(); };
  const bool has_main = ropes.empty() || has(RopeKind::kMain);
  const kernels::RotaryConfig* const rotary = rope == RopeKind::kMain && has_main ? &config_.rotary
                                              : rope == RopeKind::kLocal && has(rope)
                                                  ? &config_.local_rotary
                                                  : nullptr;
  return rotary == nullptr || rotary->inverse_frequencies.empty() ? nullptr : rotary;
}

Status LayerAttention::set_up(RecordedSteps& recorded) {
  for (const RopeKind rope : kTurningRopes) {
    const kernels::RotaryConfig* const rotary = rotary_of(rope);
    if (rotary == nullptr) {
      continue;
    }
    const std::vector<double>& frequencies = rotary->inverse_frequencies;
    auto& there = frequencies_[index_of(rope)];
    QUIRE_TRY_STATUS(recorded.reserve(there, std::max<std::size_t>(frequencies.size(), 1)));
    QUIRE_TRY_STATUS(device::cuda::copy_async(there.data(), frequencies.data(),
                                              frequencies.size() * sizeof(double), stream()));
  }
  return {};
}

Status LayerAttention::reserve(int stored_dim, RecordedSteps& recorded) {
  const auto rows = static_cast<std::size_t>(step_.shape().rows);
  const auto heads = static_cast<std::size_t>(config_.heads);
  const auto stored = static_cast<std::size_t>(stored_dim);
  const auto reserve_angles = [&](Angles& cosines, Angles& sines, std::size_t count) -> Status {
    for (const RopeKind rope : kTurningRopes) {
      if (const kernels::RotaryConfig* const rotary = rotary_of(rope); rotary != nullptr) {
        const auto half = static_cast<std::size_t>(rotary->rotary_dim()) / 2;
        QUIRE_TRY_STATUS(recorded.reserve(cosines[index_of(rope)], count * half));
        QUIRE_TRY_STATUS(recorded.reserve(sines[index_of(rope)], count * half));
      }
    }
    return {};
  };
  std::size_t partials = 0, queries = 0;
  for (WindowStep& window : step_.windows()) {
    const auto count = static_cast<std::size_t>(window.queries());
    partials =
        std::max(partials, static_cast<std::size_t>(window.formats().front().plan.num_partials));
    queries = std::max(queries, count);
    QUIRE_TRY_STATUS(reserve_angles(window.cosines, window.sines, count));
  }
  // Partials grow with the length of what is read; a step seldom needs more than the one before.
  partials = std::bit_ceil(std::max<std::size_t>(partials, 1));
  QUIRE_TRY_STATUS(reserve_angles(key_cosines_, key_sines_, rows));
  QUIRE_TRY_STATUS(recorded.reserve(queries_, queries * heads * stored));
  QUIRE_TRY_STATUS(
      recorded.reserve(attended_, rows * heads * static_cast<std::size_t>(config_.head_dim)));
  QUIRE_TRY_STATUS(recorded.reserve(partial_values_, partials * heads * stored));
  QUIRE_TRY_STATUS(recorded.reserve(partial_stats_, partials * heads * 2));
  if (partials_there_.size() < rows * heads) {
    QUIRE_TRY_STATUS(recorded.reserve(partials_there_, rows * heads));
    if (Status zero = device::cuda::fill_async(
            partials_there_.data(), 0, partials_there_.size() * sizeof(std::uint32_t), stream());
        !zero.ok()) {
      partials_there_ = {};
      return zero;
    }
  }
  return recorded.reserve(lse_, rows * heads);
}

float LayerAttention::scale_log2() const {
  return static_cast<float>(config_.scales.scores != 0.0
                                ? std::numbers::log2e * config_.scales.scores
                                : std::numbers::log2e / std::sqrt(double(config_.head_dim)));
}

kernels::cuda::RotaryTable LayerAttention::table(RopeKind rope, const Angles& cosines,
                                                 const Angles& sines,
                                                 std::int64_t first_row) const {
  const kernels::RotaryConfig* const rotary = rotary_of(rope);
  if (rotary == nullptr) {
    return {};
  }
  const std::int32_t half = rotary->rotary_dim() / 2;
  return {cosines[index_of(rope)].data() + first_row * half,
          sines[index_of(rope)].data() + first_row * half, half};
}

Status LayerAttention::begin_step() {
  for (const RopeKind rope : kTurningRopes) {
    const kernels::RotaryConfig* const rotary = rotary_of(rope);
    if (rotary == nullptr) {
      continue;
    }
    const auto fill = [&](Uploaded<std::int32_t> positions, std::int64_t count,
                          const kernels::cuda::RotaryTable& to) {
      return to_status(
          kernels::cuda::fill_rotary(frequencies_[index_of(rope)].data(), rotary->scale,
                                     step_.get(positions), count, to, stream()),
          "fill_rotary");
    };
    QUIRE_TRY_STATUS(
        fill(step_.positions(), step_.shape().rows, table(rope, key_cosines_, key_sines_)));
    for (const WindowStep& window : step_.windows()) {
      QUIRE_TRY_STATUS(fill(window.query_positions, window.queries(),
                            table(rope, window.cosines, window.sines)));
    }
  }
  return {};
}

kernels::cuda::QKVRows LayerAttention::qkv_rows(const Call& call) const {
  return {.qkv = call.qkv,
          .stride = call.qkv_width,
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim};
}

kernels::cuda::KVLayer LayerAttention::stored_layer(const PagedKVView& view) const {
  return {.dtype = view.dtype,
          .data = reinterpret_cast<Half*>(view.data),
          .head_stride = view.head_stride / kElement,
          .block_stride = view.block_stride / kElement,
          .v_offset = view.v_offset / kElement,
          .stored_dim = view.head_dim,
          .format = view.format,
          .scale_offset = view.scale_offset / kElement,
          .v_scale_offset = v_scale_offset(view),
          .refused = stored_.refused(step_.shape()),
          .errors = stored_.errors(step_.shape())};
}

// Returns the queries of a format, and where they go.
kernels::cuda::QueryRows LayerAttention::query_rows(const Call& call,
                                                    const FormatPlan& plan) const {
  const PagedKVView& view = call.views[plan.format];
  const tensor::DType dtype = attention::cuda::query_dtype(view.dtype, view.format);
  return {.dtype = dtype,
          .rows = step_.get(plan.query_rows),
          .count = plan.shape.queries,
          .stored_dim = view.head_dim,
          .out = queries_.data() + std::int64_t{plan.first_query} * config_.heads * view.head_dim,
          .saturates = dtype != view.dtype};
}

// Returns the plan whose queries one kernel rotates while it stores rows: both in plain numbers.
// Null where the caller acts between them, or no rows or no queries are such.
const FormatPlan* LayerAttention::fused_plan(const Call& call, const WindowStep& window) const {
  bool stores_plain = false;
  for (std::size_t format = 0; format < call.views.size(); ++format) {
    stores_plain = stores_plain || (is_plain(call.views[format]) &&
                                    (step_.shape().slot_formats >> format & 1U) != 0);
  }
  if (!call.stores || call.before_read || !stores_plain) {
    return nullptr;
  }
  for (const FormatPlan& plan : window.formats()) {
    if (is_plain(call.views[plan.format])) {
      return &plan;
    }
  }
  return nullptr;
}

// Queues the storage of rows, format by format. The first plain one rotates the queries of `fused`.
Status LayerAttention::append(const Call& call, const WindowStep& window, const FormatPlan* fused) {
  const std::uint32_t formats = call.stores ? step_.shape().slot_formats : 0;
  for (std::uint8_t format = 0; formats >> format != 0; ++format) {
    if ((formats >> format & 1U) == 0) {
      continue;
    }
    const PagedKVView& view = call.views[format];
    const kernels::cuda::AppendedRows rows{.table = table(rope_of(call), key_cosines_, key_sines_),
                                           .slots = step_.slots(),
                                           .count = step_.shape().rows,
                                           .formats = step_.slot_formats(),
                                           .format = format};
    if (fused != nullptr && is_plain(view)) {
      QUIRE_TRY_STATUS(
          to_status(kernels::cuda::append_and_rotate(
                        qkv_rows(call), rows, stored_layer(view),
                        table(rope_of(call), window.cosines, window.sines, fused->first_query),
                        query_rows(call, *fused), stream()),
                    "append_and_rotate"));
      fused = nullptr;
    } else {
      QUIRE_TRY_STATUS(
          to_status(kernels::cuda::append_kv(qkv_rows(call), rows, stored_layer(view), stream()),
                    "append_kv"));
    }
  }
  return {};
}

// Queues the sealing of the blocks that become full.
Status LayerAttention::seal(const Call& call) {
  if (!call.stores || step_.shape().seals == 0) {
    return {};
  }
  kernels::cuda::SealViews views{.kv_heads = config_.kv_heads,
                                 .head_dim = config_.head_dim,
                                 .block_tokens = call.views.front().block_tokens};
  for (std::size_t format = 0; format < call.views.size(); ++format) {
    views.of[format] = stored_layer(call.views[format]);
  }
  return to_status(kernels::cuda::seal_blocks(
                       views, step_.seals(), step_.shape().seals,
                       {stored_.refused(step_.shape()), stored_.errors(step_.shape())}, stream()),
                   "seal_blocks");
}

AttentionArgs LayerAttention::attention_args(const Call& call, const WindowStep& window,
                                             const FormatPlan& plan) const {
  const PagedKVView& view = call.views[plan.format];
  return {.kv = {.data = reinterpret_cast<Half*>(view.data),
                 .head_stride = view.head_stride / kElement,
                 .block_stride = view.block_stride / kElement,
                 .v_offset = view.v_offset / kElement,
                 .block_tokens = view.block_tokens,
                 .block_shift = attention::cuda::block_shift(view.block_tokens),
                 .head_dim = view.head_dim,
                 .dtype = view.dtype,
                 .format = view.format,
                 .scale_offset = view.scale_offset / kElement,
                 .v_scale_offset = v_scale_offset(view)},
          .work = {.few = step_.get(plan.few),
                   .many = step_.get(plan.many),
                   .rows = step_.get(plan.rows),
                   .partials = step_.get(window.partials),
                   .blocks = step_.blocks(),
                   .queues = step_.get(plan.queues),
                   .num_few = plan.shape.few,
                   .num_many = plan.shape.many,
                   .wide = plan.shape.wide,
                   .num_rows = step_.shape().rows,
                   .merges = window.merges(),
                   .like_many = plan.plan.like_many,
                   .partial_values = partial_values_.data(),
                   .partial_stats = reinterpret_cast<float2*>(partial_stats_.data()),
                   .partials_there = partials_there_.data()},
          .q = queries_.data() + std::int64_t{plan.first_query} * config_.heads * view.head_dim,
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .scale_log2 = scale_log2(),
          .cap_log2 = static_cast<float>(config_.scales.score_cap * std::numbers::log2e),
          .out = attended_.data(),
          .sinks = call.sinks,
          .lse = call.weighed != nullptr ? lse_.data() : nullptr};
}

Status LayerAttention::attend(const Call& call, const WindowStep& window) {
  args_.clear();
  for (const FormatPlan& plan : window.formats()) {
    args_.push_back(attention_args(call, window, plan));
  }
  QUIRE_TRY_STATUS(to_status(attention::cuda::launch_attention(args_, stream()), "attention"));
  if (call.weighed == nullptr) {
    return {};
  }
  for (std::size_t i = 0; i < args_.size(); ++i) {
    QUIRE_TRY_STATUS(mass_.weigh(*call.weighed, window, window.formats()[i], args_[i], step_));
  }
  return {};
}

Status LayerAttention::run(const Call& call) {
  const WindowStep& window = step_.window_of(call.layer);
  const FormatPlan* const fused = fused_plan(call, window);
  QUIRE_TRY_STATUS(append(call, window, fused));
  QUIRE_TRY_STATUS(seal(call));
  if (call.before_read) {
    call.before_read();
  }
  for (const FormatPlan& plan : window.formats()) {
    if (&plan != fused) {
      QUIRE_TRY_STATUS(to_status(
          kernels::cuda::rotate_queries(
              qkv_rows(call), table(rope_of(call), window.cosines, window.sines, plan.first_query),
              query_rows(call, plan), stream()),
          "rotate_queries"));
    }
  }
  return attend(call, window);
}

}  // namespace quire::model::cuda
