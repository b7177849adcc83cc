#include "quire/model/step_plans.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/base/stopwatch.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_rotary.h"

namespace quire::model {

StepPlans::StepPlans(const kernels::KernelContext& context, const ModelConfig& config,
                     std::span<const LayerPlan> layers)
    : context_(context), config_(config), layers_(layers) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerPlan& layer = layers_[i];
    if (layer.mixer != MixerKind::kAttention) {
      continue;
    }
    auto known =
        std::ranges::find_if(plans_, [&](const WindowPlan& plan) { return serves(plan, layer); });
    if (known == plans_.end()) {
      known = plans_.insert(known, {.window_tokens = layer.window_tokens, .layer = i});
    }
    known->has_rope[index_of(layer.rope)] = true;
    has_rope_[index_of(layer.rope)] = true;
  }
}

// Tells whether a layer has the window and the sizes of a plan.
bool StepPlans::serves(const WindowPlan& plan, const LayerPlan& layer) const {
  const LayerPlan& other = layers_[plan.layer];
  return plan.window_tokens == layer.window_tokens && other.kv_heads == layer.kv_heads &&
         other.head_dim == layer.head_dim;
}

attention::AttentionShape StepPlans::shape(std::size_t layer) const {
  return {.heads = config_.heads,
          .kv_heads = layers_[layer].kv_heads,
          .head_dim = layers_[layer].head_dim,
          .softmax_scale = config_.score_scale(),
          .soft_cap = config_.scales.score_cap};
}

void StepPlans::make(WindowPlan& window, std::span<const attention::Entry> entries,
                     std::int32_t block_tokens, ForwardTiming& timing, base::Stopwatch& watch) {
  watch.lap(timing.other);
  window.entries = entries;
  plan_maker_.make(shape(window.layer), entries, block_tokens, window.window_tokens,
                   context_.pool->threads(), window.plan);
  watch.lap(timing.host);
  fill_rotary(context_, config_, window.has_rope, window.plan.query_positions, window.query_rotary);
}

// Sets last_entries_ to those of the batch, with rows of logits only.
void StepPlans::keep_rows_of_logits(const ForwardBatch& batch) {
  std::size_t most = 0;
  for (const attention::Entry& entry : batch.entries) {
    most += entry.rows.size();
  }
  last_entries_.clear();
  last_rows_.clear();
  last_rows_.reserve(most);  // entries point to it
  for (const attention::Entry& entry : batch.entries) {
    const std::size_t first = last_rows_.size();
    for (const attention::EntryRow& row : entry.rows) {
      if (std::binary_search(batch.logit_rows.begin(), batch.logit_rows.end(), row.row)) {
        last_rows_.push_back(row);
      }
    }
    if (last_rows_.size() > first) {
      last_entries_.push_back(entry);
      last_entries_.back().rows = std::span(last_rows_).subspan(first);
    }
  }
}

void StepPlans::prepare(const ForwardBatch& batch, std::int32_t block_tokens,
                        const ForwardProbe* probe, ForwardTiming& timing, base::Stopwatch& watch) {
  fill_rotary(context_, config_, has_rope_, batch.positions, key_rotary_);
  for (WindowPlan& window : plans_) {
    make(window, batch.entries, block_tokens, timing, watch);
  }
  last_is_less_ = probe == nullptr && batch.band == nullptr &&
                  batch.logit_rows.size() < batch.token_ids.size() &&
                  layers_.back().mixer == MixerKind::kAttention;
  if (last_is_less_) {
    keep_rows_of_logits(batch);
    last_plan_.window_tokens = layers_.back().window_tokens;
    last_plan_.layer = layers_.size() - 1;
    last_plan_.has_rope = {};
    last_plan_.has_rope[index_of(layers_.back().rope)] = true;
    make(last_plan_, last_entries_, block_tokens, timing, watch);
  }
}

const WindowPlan& StepPlans::of(std::size_t layer) const {
  if (last_is_less_ && layer + 1 == layers_.size()) {
    return last_plan_;
  }
  return *std::find_if(plans_.begin(), plans_.end(),
                       [&](const WindowPlan& plan) { return serves(plan, layers_[layer]); });
}

}  // namespace quire::model
