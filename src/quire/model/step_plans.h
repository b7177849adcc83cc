// StepPlans: how the rows of a step attend, for the layers of each window. Everything here is
// independent of the layer's weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_maker.h"
#include "quire/base/stopwatch.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_rotary.h"

namespace quire::model {

// State that all layers with one window and one size of KV share during a step.
struct WindowPlan {
  std::int32_t window_tokens = 0;
  std::size_t layer = 0;      // one that has it; others have the same sizes of KV
  WantedRopes has_rope = {};  // some layer has the window and the rope
  std::span<const attention::Entry> entries;
  attention::AttentionPlan plan;  // plan of the entries
  RotaryTables query_rotary;      // rows as plan.query_positions
};

// Keeps its memory between steps. One step at a time.
class StepPlans {
 public:
  // Borrows `config` and the layers' plans, which outlive it.
  StepPlans(const kernels::KernelContext& context, const ModelConfig& config,
            std::span<const LayerPlan> layers);

  // Makes the plans of a step. Adds the time of planning to `timing`.
  void prepare(const ForwardBatch& batch, std::int32_t block_tokens, const ForwardProbe* probe,
               ForwardTiming& timing, base::Stopwatch& watch);
  // Returns the plan of a layer with attention. Valid until the next prepare().
  [[nodiscard]] const WindowPlan& of(std::size_t layer) const;
  // Returns the rotations of the keys, by the layer's rope; rows as batch.positions.
  [[nodiscard]] const kernels::RotaryTable& key_rotary(RopeKind rope) const {
    return key_rotary_[index_of(rope)];
  }
  // Returns the shape of attention in a layer.
  [[nodiscard]] attention::AttentionShape shape(std::size_t layer) const;

 private:
  [[nodiscard]] bool serves(const WindowPlan& plan, const LayerPlan& layer) const;
  void make(WindowPlan& window, std::span<const attention::Entry> entries,
            std::int32_t block_tokens, ForwardTiming& timing, base::Stopwatch& watch);
  void keep_rows_of_logits(const ForwardBatch& batch);

  const kernels::KernelContext context_;
  const ModelConfig& config_;
  std::span<const LayerPlan> layers_;
  std::vector<WindowPlan> plans_;  // one per distinct window and size
  WantedRopes has_rope_ = {};      // of some layer
  RotaryTables key_rotary_;
  // The last layer's, of rows of logits only, and what it is made of. Not where all rows have
  // logits, or a probe wants to know about them.
  bool last_is_less_ = false;
  WindowPlan last_plan_;
  std::vector<attention::Entry> last_entries_;
  std::vector<attention::EntryRow> last_rows_;
  attention::PlanMaker plan_maker_;
};

}  // namespace quire::model
