// PlanMaker: entries to work items, in plain C++ without a device. Pure: same entries, same plan.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"

namespace quire::attention {

// Makes plans one after the other. Its memory is used again, so that a step like the one before
// allocates nothing. One thread at a time.
class PlanMaker {
 public:
  PlanMaker();
  ~PlanMaker();
  PlanMaker(const PlanMaker&) = delete;
  PlanMaker& operator=(const PlanMaker&) = delete;

  // Replaces what `plan` holds. `window_tokens` 0 = none. Plans differ per window, so a model with
  // two windows makes two; one plan serves all layers with that window. Preconditions
  // (QUIRE_CHECK): heads a multiple of kv_heads, block_tokens 1..256, rows of an entry strictly
  // ascending, every visible token in a block with an id >= 0. Cost: about 10 ns per (tile, visible
  // block) and KV head.
  void make(const AttentionShape& shape, std::span<const Entry> entries, std::int32_t block_tokens,
            std::int32_t window_tokens, int threads, AttentionPlan& plan);

  struct Memory;

 private:
  std::unique_ptr<Memory> memory_;
};

// Makes one plan, as PlanMaker does, with memory of its own.
[[nodiscard]] AttentionPlan make_plan(const AttentionShape& shape, std::span<const Entry> entries,
                                      std::int32_t block_tokens, std::int32_t window_tokens,
                                      int threads);

}  // namespace quire::attention
