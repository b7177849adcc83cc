#include "quire/kv/preemption.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/kv/window_parts.h"

namespace quire::kv {

std::int32_t Preemption::blocks_freed_by_drop(std::span<const SeqId> ids) const {
  std::vector<Held> held;
  for (const SeqId id : ids) {
    const OpenRun& run = state_->sequence(id).open();
    if (run.format == kOwnFormat) {  // it keeps others
      for (std::int32_t i = run.blocks.num_given_up(); i < run.blocks.size(); ++i) {
        held.push_back({run.blocks.ref(i), i >= run.blocks.num_without_part()});
      }
    }
    for (const OpenBlock& open : run.open_blocks.all()) {
      if (open.block.format() == kOwnFormat) {
        held.push_back({.block = open.block});
      }
    }
  }
  const SharedBlocks& shared = state_->shared;
  const Freed freed = freed_with(held);
  if (!shared.parts().exist()) {
    return freed.blocks;
  }
  const LedgerConfig& config = shared.config();
  const std::int64_t bytes = bytes_available(shared) + freed.blocks * config.full_bytes() +
                             freed.parts * config.window_group.block_bytes;
  const std::int64_t ids_left =
      shared.pool().num_free() + shared.index().num_unused() + freed.blocks;
  return static_cast<std::int32_t>(std::min(ids_left, bytes / config.block_bytes(kOwnFormat))) -
         shared.num_available();
}

std::int32_t Preemption::open_blocks_freed_by_drop(std::span<const SeqId> ids) const {
  std::vector<Held> held;
  for (const SeqId id : ids) {
    for (const OpenBlock& open : state_->sequence(id).open().open_blocks.all()) {
      if (open.block.format() != kOwnFormat) {
        held.push_back({.block = open.block});
      }
    }
  }
  return freed_with(held).blocks;
}

// Returns how many of these blocks nobody else uses, and of how many nobody else the window part.
Preemption::Freed Preemption::freed_with(std::span<Held> held) const {
  std::ranges::sort(held, {}, [](const Held& one) { return one.block.id; });
  Freed freed;
  for (auto first = held.begin(); first != held.end();) {
    const auto next =
        std::find_if(first, held.end(), [&](const Held& b) { return b.block != first->block; });
    const auto parts = std::count_if(first, next, [](const Held& b) { return b.with_part; });
    freed.blocks += next - first == num_users(state_->shared, first->block) ? 1 : 0;
    freed.parts += parts > 0 && parts == state_->shared.parts().holders(first->block.id) ? 1 : 0;
    first = next;
  }
  return freed;
}

void Preemption::drop_kv(SeqId id) {
  state_->sequence(id).drop_kv();
  if (SequenceStates* states = state_->states_of(id)) {
    states->drop();
  }
}

std::int32_t Preemption::reattach(SeqId id) { return state_->reattach(id); }

}  // namespace quire::kv
