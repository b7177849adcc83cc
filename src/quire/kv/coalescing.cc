#include "quire/kv/coalescing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

struct Tail {
  SeqId sequence;
  std::int32_t slot = 0;
  std::int32_t tokens = 0;
};

// A last block that is not full, with the tails in it.
struct TailBlock {
  BlockRef block;
  std::vector<Tail> tails;

  [[nodiscard]] std::int32_t end() const {
    std::int32_t end = 0;
    for (const Tail& tail : tails) {
      end = std::max(end, tail.slot + tail.tokens);
    }
    return end;
  }
};

// Returns whether the sequence stands still, with a tail in a block of its table.
bool has_resting_tail(const Sequence& sequence, const SharedBlocks& shared) {
  const OpenRun& open = sequence.open();
  return open.rows() % shared.config().block_tokens != 0 && open.room == 0 &&
         shared.reserved().size(open.holder) == 0 && open.format == kOwnFormat &&
         !shared.config().open_format();
}

// Returns the blocks that nobody but sequences that stand still holds, in the order of their ids.
std::vector<TailBlock> resting_blocks(const LedgerState& state) {
  const SharedBlocks& shared = state.shared;
  std::map<std::int32_t, TailBlock> found;
  for (const auto& [id, sequence] : state.sequences) {
    const auto states = state.sequence_states.find(id);
    const bool lacks_tail = states != state.sequence_states.end() && states->second.lacks_tail();
    if (!lacks_tail && has_resting_tail(sequence, shared)) {
      const OpenRun& open = sequence.open();
      TailBlock& block = found[open.blocks.live().back().id.value];
      block.block = open.blocks.live().back();
      block.tails.push_back({.sequence = {id},
                             .slot = open.tail_slot,
                             .tokens = open.rows() % shared.config().block_tokens});
    }
  }
  std::vector<TailBlock> blocks;
  for (auto& [id, block] : found) {
    if (shared.pool().references(block.block.id) == std::ssize(block.tails)) {
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

}  // namespace

// Best fit, the longest tail first: each goes into the block with the least room for it, or its
// block takes in others.
CoalescingPlan Coalescing::plan() const {
  CoalescingPlan plan;
  std::vector<TailBlock> blocks = resting_blocks(*state_);
  const auto is_shared = [](const TailBlock& block) { return block.tails.size() > 1; };
  const auto alone = std::ranges::stable_partition(blocks, is_shared);
  std::ranges::stable_sort(alone, std::ranges::greater(),
                           [](const TailBlock& block) { return block.tails.front().tokens; });
  const std::int32_t block_tokens = state_->shared.config().block_tokens;
  std::set<std::pair<std::int32_t, std::size_t>> room;  // of blocks that stay
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Tail& tail = blocks[i].tails.front();
    const auto into = room.lower_bound({tail.tokens, 0});
    if (is_shared(blocks[i]) || into == room.end()) {
      room.emplace(block_tokens - blocks[i].end(), i);
      continue;
    }
    const auto [left, to] = *into;
    plan.moves.push_back({.sequence = tail.sequence,
                          .from = blocks[i].block,
                          .to = blocks[to].block,
                          .from_slot = tail.slot,
                          .to_slot = block_tokens - left,
                          .tokens = tail.tokens});
    room.erase(into);
    room.emplace(left - tail.tokens, to);
  }
  return plan;
}

std::int32_t Coalescing::apply(const CoalescingPlan& plan) {
  SharedBlocks& shared = state_->shared;
  shared.copies().reserve_more(static_cast<std::int32_t>(plan.moves.size()));
  for (const TailMove& move : plan.moves) {
    Sequence& sequence = state_->sequence(move.sequence);
    const OpenRun& open = sequence.open();
    QUIRE_CHECK(open.blocks.live().back() == move.from && open.tail_slot == move.from_slot &&
                    open.room == 0,
                "the ledger has changed since the plan");
    shared.retain(move.to);
    shared.copies().add({.from = move.from.id,
                         .to = move.to.id,
                         .tokens = move.tokens,
                         .from_slot = move.from_slot,
                         .to_slot = move.to_slot});
    sequence.move_tail(move.to, move.to_slot);
  }
  return static_cast<std::int32_t>(plan.moves.size());
}

}  // namespace quire::kv
