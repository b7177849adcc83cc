#include "quire/kv/coalescing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

struct Tail {
  SeqId sequence;
  SegmentId segment;
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

using BlocksByPlace = std::map<std::pair<std::uint8_t, std::int32_t>, TailBlock>;

void add_tail(BlockRef block, Tail tail, BlocksByPlace& found) {
  TailBlock& there = found[{block.format().value, block.id.value}];
  there.block = block;
  there.tails.push_back(tail);
}

// Returns the blocks that nobody holds but the owners of the tails in them.
std::vector<TailBlock> without_others(const SharedBlocks& shared, BlocksByPlace found) {
  std::vector<TailBlock> blocks;
  for (auto& [place, block] : found) {
    if (shared.pool(block.block.format()).references(block.block.id) == std::ssize(block.tails)) {
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

// Returns the blocks that nobody but sequences that stand still holds, in the order of their ids.
std::vector<TailBlock> resting_blocks(const LedgerState& state) {
  const SharedBlocks& shared = state.shared;
  BlocksByPlace found;
  for (const auto& [id, sequence] : state.sequences) {
    const auto states = state.sequence_states.find(id);
    const bool lacks_tail = states != state.sequence_states.end() && states->second.lacks_tail();
    if (!lacks_tail && has_resting_tail(sequence, shared)) {
      const OpenRun& open = sequence.open();
      add_tail(open.blocks.live().back(),
               {.sequence = {id},
                .slot = open.tail_slot,
                .tokens = open.rows() % shared.config().block_tokens},
               found);
    }
  }
  return without_others(shared, std::move(found));
}

// Returns the blocks that nobody but such segments holds, each for its last tokens. A segment that
// a sequence uses, or that has two names, has another owner.
std::vector<TailBlock> resting_blocks(const LedgerState& state,
                                      std::span<const SegmentId> segments) {
  const LedgerConfig& config = state.shared.config();
  BlocksByPlace found;
  for (const SegmentId id : segments) {
    const auto named = state.segments.find(id.value);
    if (named == state.segments.end() || named->second.use_count() > 1) {
      continue;
    }
    const Segment& segment = *named->second;
    const std::int32_t tokens = segment.num_tokens() % config.block_tokens;
    if (tokens != 0 && !config.formats[segment.blocks().last_format().value].open) {
      add_tail(segment.blocks().live().back(),
               {.segment = id, .slot = segment.tail_slot(), .tokens = tokens}, found);
    }
  }
  return without_others(state.shared, std::move(found));
}

// Plans best fit, the longest tail first: each goes into the block with the least room for it, or
// its block takes in others.
CoalescingPlan plan_moves(std::vector<TailBlock> blocks, std::int32_t block_tokens,
                          std::int32_t most_moves) {
  CoalescingPlan plan;
  const auto is_shared = [](const TailBlock& block) { return block.tails.size() > 1; };
  const auto alone = std::ranges::stable_partition(blocks, is_shared);
  std::ranges::stable_sort(alone, std::ranges::greater(),
                           [](const TailBlock& block) { return block.tails.front().tokens; });
  using Room = std::set<std::pair<std::int32_t, std::size_t>>;
  std::map<std::uint8_t, Room> rooms;  // by format, of blocks that stay
  for (std::size_t i = 0; i < blocks.size() && std::cmp_less(plan.moves.size(), most_moves); ++i) {
    Room& room = rooms[blocks[i].block.format().value];
    const Tail& tail = blocks[i].tails.front();
    const auto into = room.lower_bound({tail.tokens, 0});
    if (is_shared(blocks[i]) || into == room.end()) {
      room.emplace(block_tokens - blocks[i].end(), i);
      continue;
    }
    const auto [left, to] = *into;
    plan.moves.push_back({.sequence = tail.sequence,
                          .segment = tail.segment,
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

// Lets the tail of a segment that nobody uses lie in another block. Asks for memory first.
void move_tail(LedgerState& state, SegmentId id, BlockRef to, std::int32_t slot) {
  std::shared_ptr<const Segment>& segment = state.segments.at(id.value);
  state.tails_moving.reserve(state.tails_moving.size() + 1);
  auto moved = std::make_shared<Segment>(segment->clone());
  state.shared.retain(to);
  moved->move_tail(to, slot);
  segment = std::move(moved);
  state.tails_moving.push_back(id);
}

}  // namespace

CoalescingPlan Coalescing::plan() const {
  return plan_moves(resting_blocks(*state_), state_->shared.config().block_tokens,
                    std::numeric_limits<std::int32_t>::max());
}

CoalescingPlan Coalescing::plan(std::span<const SegmentId> segments,
                                std::int32_t most_moves) const {
  return plan_moves(resting_blocks(*state_, segments), state_->shared.config().block_tokens,
                    most_moves);
}

std::int32_t Coalescing::apply(const CoalescingPlan& plan) {
  SharedBlocks& shared = state_->shared;
  shared.copies().reserve_more(static_cast<std::int32_t>(plan.moves.size()));
  for (const TailMove& move : plan.moves) {
    const BlockCopy copy = {.from = move.from.id,
                            .to = move.to.id,
                            .tokens = move.tokens,
                            .format = move.to.format(),
                            .from_slot = move.from_slot,
                            .to_slot = move.to_slot};
    if (move.segment != SegmentId()) {
      move_segment(move);
    } else {
      move_sequence(move);
    }
    shared.copies().add(copy);
    ++state_->blocks_coalesced;
  }
  return static_cast<std::int32_t>(plan.moves.size());
}

void Coalescing::move_sequence(const TailMove& move) {
  Sequence& sequence = state_->sequence(move.sequence);
  const OpenRun& open = sequence.open();
  QUIRE_CHECK(
      open.blocks.live().back() == move.from && open.tail_slot == move.from_slot && open.room == 0,
      "the ledger has changed since the plan");
  state_->shared.retain(move.to);
  sequence.move_tail(move.to, move.to_slot);
}

void Coalescing::move_segment(const TailMove& move) {
  const auto named = state_->segments.find(move.segment.value);
  QUIRE_CHECK(named != state_->segments.end() && named->second.use_count() == 1 &&
                  named->second->blocks().live().back() == move.from &&
                  named->second->tail_slot() == move.from_slot,
              "the ledger has changed since the plan");
  move_tail(*state_, move.segment, move.to, move.to_slot);
}

Status Coalescing::take_out(std::span<const SegmentId> segments) {
  SharedBlocks& shared = state_->shared;
  std::map<std::uint64_t, FormatId> moved;
  BlockCounts needed;
  std::int64_t tokens = 0;
  for (const SegmentId id : segments) {
    if (!is_moved(id)) {
      continue;
    }
    const Segment& segment = *state_->segments.at(id.value);
    if (moved.emplace(id.value, segment.blocks().last_format()).second) {
      ++needed[segment.blocks().last_format()];
      tokens += segment.num_tokens() % shared.config().block_tokens;
    }
  }
  if (moved.empty()) {
    return {};
  }
  if (!(shared.lacking(needed) == BlockCounts())) {
    return state_->no_room(tokens, needed);
  }
  shared.copies().reserve_more(static_cast<std::int32_t>(moved.size()));
  shared.lend_for(needed);
  for (const auto& [id, format] : moved) {
    const Segment& segment = *state_->segments.at(id);
    BlockCopy copy = {.from = segment.blocks().live().back().id,
                      .tokens = segment.num_tokens() % shared.config().block_tokens,
                      .format = format,
                      .from_slot = segment.tail_slot()};
    BlockTable fresh(shared);  // holds the block until the segment does
    fresh.reserve(1);
    fresh.push(shared.acquire(format, 1).front());
    copy.to = fresh.ref(0).id;
    move_tail(*state_, {id}, fresh.ref(0), 0);
    shared.copies().add(copy);
  }
  return {};
}

bool Coalescing::is_moved(SegmentId segment) const {
  const auto named = state_->segments.find(segment.value);
  return named != state_->segments.end() && named->second->tail_slot() > 0;
}

std::int64_t Coalescing::shared_bytes(SegmentId segment) const {
  const SharedBlocks& shared = state_->shared;
  const auto named = state_->segments.find(segment.value);
  if (named == state_->segments.end() ||
      named->second->num_tokens() % shared.config().block_tokens == 0) {
    return 0;
  }
  const BlockRef last = named->second->blocks().live().back();
  return shared.is_shared(last) ? shared.config().block_bytes(last.format()) : 0;
}

std::span<const SegmentId> Coalescing::last_moved() const { return state_->tails_moved; }

}  // namespace quire::kv
