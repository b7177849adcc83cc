#include "quire/sched/room_left.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"

namespace quire::sched {

RoomLeft::RoomLeft(const kv::Ledger& ledger, std::span<const SeqId> dropped)
    : ledger_(&ledger),
      own_(std::int64_t{ledger.blocks_available()} +
           ledger.preemption().blocks_freed_by_drop(dropped)),
      states_(std::int64_t{ledger.points().states_available()} +
              ledger.points().states_freed_by_drop(dropped)),
      drops_(!dropped.empty()) {
  if (ledger.config().lent_open_format()) {
    open_ = ledger.open_blocks_free() + ledger.preemption().open_blocks_freed_by_drop(dropped);
  }
}

RoomLeft RoomLeft::of_free_blocks(const kv::Ledger& ledger) {
  RoomLeft room(ledger);
  room.own_ = ledger.counts().blocks_free;
  room.reach_ = 0;  // a slab for open blocks may have cached ones
  return room;
}

RoomNeed RoomLeft::need_of(SeqId id, std::int32_t count) const {
  const kv::BlockNeeds blocks = ledger_->sequences().needs(id, count);
  RoomNeed need{.own = blocks.own, .open = blocks.open};
  if (count > 0 && ledger_->points().exist()) {
    need.states = ledger_->points().states_needed(id);
  }
  return need;
}

// Returns the slabs that `open` blocks need at most. A block across two slabs is lost to both.
std::int64_t RoomLeft::slabs_for(std::int64_t open) const {
  const kv::LedgerConfig& config = ledger_->config();
  const std::int64_t slab_bytes = config.slab_blocks * config.block_bytes(kv::kOwnFormat);
  const std::int64_t in_slab =
      slab_bytes / config.block_bytes(config.lent_open_format().value_or(kv::kOwnFormat)) - 1;
  const std::int64_t each = std::max<std::int64_t>(in_slab, 1);
  return (open + each - 1) / each;
}

std::int64_t RoomLeft::open_within_reach() const {
  if (drops_) {
    return std::numeric_limits<std::int64_t>::max();
  }
  if (!reach_) {
    reach_ =
        ledger_->blocks_available(ledger_->config().lent_open_format().value_or(kv::kOwnFormat));
  }
  return *reach_;
}

bool RoomLeft::fits(const RoomNeed& need) const {
  if (need.states > states_) {
    return false;
  }
  if (need.open <= open_) {
    return need.own <= own_;
  }
  const std::int64_t lent = slabs_for(need.open - open_) * ledger_->config().slab_blocks;
  return need.own + lent <= own_ && open_taken_ + need.open <= open_within_reach();
}

void RoomLeft::take(const RoomNeed& need) {
  if (need.open > open_) {
    own_ -= slabs_for(need.open - open_) * ledger_->config().slab_blocks;
    open_ = need.open;  // the rest of a slab is for the next step
  }
  open_ -= need.open;
  open_taken_ += need.open;
  own_ -= need.own;
  states_ -= need.states;
}

std::int32_t RoomLeft::rows_that_fit(SeqId id, std::int32_t wanted) const {
  if (fits(id, wanted)) {
    return wanted;
  }
  std::int32_t fit = 0;
  for (std::int32_t too_many = wanted; too_many - fit > 1;) {
    const std::int32_t middle = fit + (too_many - fit) / 2;
    (fits(id, middle) ? fit : too_many) = middle;
  }
  return fit;
}

void reserve_blocks(kv::Ledger& ledger, SeqId sequence, std::int64_t tokens) {
  const kv::LedgerCounts counts = ledger.counts();
  const std::int64_t needed = ledger.config().blocks_for(tokens, kv::kOwnFormat)[kv::kOwnFormat];
  if (counts.blocks_free - counts.blocks_reserved - needed >= counts.blocks_total / 2) {
    (void)ledger.sequences().reserve(sequence, tokens);
  }
}

}  // namespace quire::sched
