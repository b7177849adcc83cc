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
#include "quire/kv/states.h"

namespace quire::kv {

std::int32_t Preemption::blocks_freed_by_drop(std::span<const SeqId> ids) const {
  std::vector<BlockRef> held;
  for (const SeqId id : ids) {
    const OpenRun& run = state_->sequence(id).open();
    if (run.format == kOwnFormat) {  // it keeps others
      const std::span<const BlockRef> live = run.blocks.live();
      held.insert(held.end(), live.begin(), live.end());
    }
    for (const OpenBlock& open : run.open_blocks.all()) {
      if (open.block.format() == kOwnFormat) {
        held.push_back(open.block);
      }
    }
  }
  return freed_with(held);
}

std::int32_t Preemption::open_blocks_freed_by_drop(std::span<const SeqId> ids) const {
  std::vector<BlockRef> held;
  for (const SeqId id : ids) {
    for (const OpenBlock& open : state_->sequence(id).open().open_blocks.all()) {
      if (open.block.format() != kOwnFormat) {
        held.push_back(open.block);
      }
    }
  }
  return freed_with(held);
}

// Returns how many of these blocks nobody else uses.
std::int32_t Preemption::freed_with(std::span<BlockRef> held) const {
  std::ranges::sort(held, {}, &BlockRef::id);
  std::int32_t freed = 0;
  for (auto first = held.begin(); first != held.end();) {
    const auto next = std::find_if(first, held.end(), [&](BlockRef b) { return b != *first; });
    freed += next - first == state_->shared.num_users(*first) ? 1 : 0;
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
