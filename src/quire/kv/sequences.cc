#include "quire/kv/sequences.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/sequence.h"
#include "quire/kv/sequence_use.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

// Blocks that were taken; those that nobody has taken over are given back.
struct Leftover {
  SharedBlocks& shared;
  std::span<const BlockRef> blocks;
  ~Leftover() {
    for (const BlockRef block : blocks) {
      shared.release(block);
    }
  }
};

}  // namespace

SeqId Sequences::open(std::span<const TokenId> tokens, bool reuse, SessionRef session,
                      std::string_view salt, BehindWindow past) {
  const SeqId id = state_->add(
      Sequence(state_->shared, tokens,
               {.adopts = reuse, .session = session, .salt = std::string(salt), .past = past}));
  state_->shared.order().begin(session);
  try {
    state_->reattach(id);
  } catch (const std::bad_alloc&) {
    close(id);
    throw;
  }
  return id;
}

void Sequences::close(SeqId id) { state_->close(id); }

std::span<const TokenId> Sequences::tokens(SeqId id) const { return state_->sequence(id).tokens(); }

std::int32_t Sequences::num_computed(SeqId id) const { return state_->sequence(id).num_computed(); }

std::vector<RunView> Sequences::runs(SeqId id) const {
  std::vector<RunView> views;
  append_runs(id, views);
  return views;
}

void Sequences::append_runs(SeqId id, std::vector<RunView>& views) const {
  const Sequence& sequence = state_->sequence(id);
  for (const SealedRun& run : sequence.sealed()) {
    const BlockTable& blocks = run.segment->blocks();
    views.push_back({.blocks = blocks.ids(),
                     .num_tokens = run.segment->num_tokens(),
                     .start_position = run.start_position,
                     .stored_from = run.segment->stored_from(),
                     .format = blocks.format(),
                     .last_format = blocks.last_format(),
                     .rank = run.rank});
  }
  const OpenRun& open = sequence.open();
  views.push_back({.blocks = open.blocks.ids(),
                   .num_tokens = open.num_tokens,
                   .kept_tokens = open.kept_tokens,
                   .start_position = open.start_position,
                   .format = open.format,
                   .last_format = open.format,
                   .open_blocks = open.open_blocks.all(),
                   .tail_slot = open.tail_slot,
                   .without_part = open.blocks.num_without_part()});
}

void Sequences::reserve_memory(SeqId id, std::int64_t tokens) {
  state_->sequence(id).reserve(tokens);
}

Status Sequences::reserve(SeqId id, std::int64_t tokens) {
  if (state_->sequence(id).reserve(tokens, id.value)) {
    return {};
  }
  const LedgerConfig& config = state_->shared.config();
  const std::int64_t free = state_->shared.pool().num_free() * config.block_bytes(kOwnFormat);
  return Error{.code = ErrorCode::kOutOfBlocks,
               .message = base::str_cat("cannot reserve blocks for ", tokens, " tokens: ",
                                        state_->shared.pool().num_free(), " of ", config.num_blocks,
                                        " are free and not reserved; reserve "
                                        "fewer tokens, or close sequences"),
               .needed_bytes = blocks_for_tokens(config, tokens) * config.block_bytes(kOwnFormat),
               .free_bytes = free};
}

BlockNeeds Sequences::needs(SeqId id, std::int32_t count) const {
  return state_->sequence(id).needs(count);
}

Status Sequences::extend(SeqId id, std::int32_t count) {
  return extend({{{.sequence = id, .count = count}}});
}

Status Sequences::extend(std::span<const Growth> growths) {
  SharedBlocks& shared = state_->shared;
  const FormatId open_format = shared.config().lent_open_format().value_or(kOwnFormat);
  BlockCounts needed;
  std::int32_t open_needed = 0;
  std::int64_t tokens = 0;
  std::int32_t states_needed = 0;
  for (const Growth& growth : growths) {
    const BlockNeeds needs = state_->sequence(growth.sequence).needs(growth.count);
    needed[kOwnFormat] += needs.own;
    open_needed += needs.open;
    tokens += growth.count;
    const SequenceStates* states = state_->states_of(growth.sequence);
    states_needed += states != nullptr && growth.count > 0 && states->needs_one() ? 1 : 0;
  }
  if (states_needed > state_->states.num_available()) {
    return state_->no_state();
  }
  std::vector<BlockRef> open;
  if (open_needed == 0) {
    if (needed[kOwnFormat] > shared.num_available()) {
      return state_->no_room(tokens, needed);
    }
  } else {
    needed[open_format] = open_needed;
    if (shared.lacking(needed) != BlockCounts()) {
      return state_->no_room(tokens, needed);
    }
    open.reserve(static_cast<std::size_t>(open_needed));
    shared.lend_for(needed);
    const std::span<const BlockRef> taken = shared.acquire(open_format, open_needed);
    open.assign(taken.begin(), taken.end());
  }
  // The first of two that share an open block leaves it to the other, and memory may be refused.
  Leftover left{.shared = shared, .blocks = open};
  for (const Growth& growth : growths) {
    state_->sequence(growth.sequence).extend(growth.count, left.blocks);
    SequenceStates* states = state_->states_of(growth.sequence);
    if (states != nullptr && growth.count > 0) {
      states->make_room();
    }
  }
  return {};
}

void Sequences::advance(SeqId id, std::int32_t count) {
  Sequence& sequence = state_->sequence(id);
  const std::int32_t known = sequence.open().replays_until - sequence.num_computed();
  state_->tokens_replayed += std::clamp(known, 0, count);
  sequence.advance(count);
  SequenceStates* states = state_->states_of(id);
  if (states != nullptr && count > 0) {
    states->advance();
  }
}

void Sequences::append(SeqId id, TokenId token) { state_->sequence(id).append(token); }

SeqId Sequences::fork(SeqId id, ForkedState state) {
  const SeqId copy = state_->add(state_->sequence(id).fork());
  if (state == ForkedState::kNone) {
    state_->sequence_states.erase(copy.value);
  } else if (SequenceStates* states = state_->states_of(copy)) {
    *states = state_->states_of(id)->fork();
  }
  return copy;
}

void Sequences::exchange_kv(SeqId a, SeqId b) {
  Sequence& one = state_->sequence(a);
  Sequence& other = state_->sequence(b);
  QUIRE_CHECK(one.tokens().size() == other.tokens().size() &&
                  one.num_computed() == other.num_computed() &&
                  one.open().format == other.open().format,
              "sequences exchange the KV of other tokens");
  one.exchange_kv(other);
}

Status Sequences::rollback(SeqId id, std::int32_t length) {
  Sequence& sequence = state_->sequence(id);
  const bool valid = length >= 0 && length <= std::ssize(sequence.tokens());
  if (!valid || length >= sequence.num_computed()) {
    return sequence.rollback(length);
  }
  const std::int32_t stored = stored_length(state_->shared.config(), sequence.open(), length);
  const std::int32_t usable = usable_length(state_->shared, sequence.open(), stored);
  if (!state_->states.exist() && usable == stored) {
    return sequence.rollback(length);
  }
  // The tokens behind the point are computed again, by the next steps.
  return sequence.rollback(length,
                           state_->states.exist() ? state_->restore_before(id, length) : usable);
}

void Sequences::close_since(LedgerMark mark) {
  for (auto next = state_->sequences.begin(); next != state_->sequences.end();) {
    const SeqId id{(next++)->first};
    if (id.value > mark.last_id) {
      close(id);
    }
  }
}

bool Sequences::contains(SeqId id) const { return state_->sequences.contains(id.value); }

FormatId Sequences::format(SeqId id) const { return state_->sequence(id).open().format; }

bool Sequences::is_plain(SeqId id) const { return state_->sequence(id).is_plain(); }

const SequenceUse& Sequences::use(SeqId id) const { return state_->sequence(id).use(); }

bool Sequences::set_behind_window(SeqId id, BehindWindow past) {
  QUIRE_CHECK(is_plain(id) || state_->shared.config().window_group.tokens == 0,
              "a composed sequence keeps all its KV");
  return state_->sequence(id).set_behind_window(past);
}

std::int32_t Sequences::num_blocks_held(SeqId id) const {
  const Sequence& sequence = state_->sequence(id);
  return sequence.open().blocks.num_live() +
         static_cast<std::int32_t>(sequence.open().open_blocks.all().size()) +
         blocks_of(sequence.sealed());
}

bool Sequences::shares_open_block(SeqId id) const {
  return state_->sequence(id).must_copy_open_block();
}

}  // namespace quire::kv
