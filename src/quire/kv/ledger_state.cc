#include "quire/kv/ledger_state.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/kv/window_parts.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

SeqId LedgerState::add(Sequence sequence) {
  const std::uint64_t id = last_id + 1;
  if (states.exist()) {
    sequence_states.emplace(id, SequenceStates(states));
  }
  try {
    sequences.emplace(id, std::move(sequence));
  } catch (const std::bad_alloc&) {
    sequence_states.erase(id);
    throw;
  }
  last_id = id;
  return {id};
}

// Closes a sequence. The session gets its claim before the sequence's blocks may be evicted.
void LedgerState::close(SeqId id) {
  const auto found = sequences.find(id.value);
  if (found == sequences.end()) {
    return;
  }
  assign(id, {});
  shared.reserved().give_back(id.value);
  sequences.erase(found);
  sequence_states.erase(id.value);
  sequence_maps.erase(id.value);
}

void LedgerState::assign(SeqId id, SessionRef session) {
  Sequence& sequence = this->sequence(id);
  if (sequence.use().session == session) {
    return;
  }
  shared.order().end(sequence.use().session, last_cached(shared, sequence).id.value);
  shared.order().begin(session);
  sequence.assign(session);
}

std::int32_t LedgerState::reattach(SeqId id) {
  Sequence& sequence = this->sequence(id);
  if (!sequence.use().adopts || sequence.num_computed() > 0) {
    return 0;
  }
  const Prefix prefix = cached_prefix(sequence.tokens(), sequence.use().salt, sequence.use().past);
  // A rollback that has found no point keeps KV of its own.
  const auto found = static_cast<std::int32_t>(prefix.blocks.size()) * shared.config().block_tokens;
  const OpenRun& own_run = sequence.open();
  if (prefix.tokens > 0 || found > own_run.rows() || prefix.known_tokens > own_run.replays_until) {
    sequence.attach(prefix.blocks, prefix.tokens, prefix.known_tokens);
  }
  sequence.add_point(prefix.known_tokens);  // others may leave the history there, too
  if (SequenceStates* own = states_of(id)) {
    if (prefix.tokens > 0) {
      own->restore(prefix.state);
      own->set_lacks_tail(prefix.tokens > found);
    }
    const std::int32_t unknown = prefix.known_tokens - prefix.tokens;
    const bool is_far = unknown > (prefix.tokens > 0 ? kPointDistance : 0);
    own->leave_history_at(is_far ? prefix.known_tokens : 0);
  }
  tokens_reused += sequence.num_computed();
  return sequence.num_computed();
}

// All full blocks of the sequence are there. A block that its old state lacked is still not there
// if the point lies in it.
std::int32_t LedgerState::restore_before(SeqId id, std::int32_t length) {
  const Sequence& sequence = this->sequence(id);
  SequenceStates& own = *states_of(id);
  std::optional<States::Found> found;
  if (sequence.is_plain() && sequence.use().adopts) {
    found = states.find(sequence.tokens().first(static_cast<std::size_t>(length)),
                        sequence.use().salt, [](std::int32_t) { return true; });
  }
  if (!found) {
    own.drop();
    return 0;
  }
  const std::int32_t block_tokens = shared.config().block_tokens;
  const std::int32_t first_lacking = sequence.num_computed() / block_tokens * block_tokens;
  own.restore(found->state);
  own.set_lacks_tail(own.lacks_tail() && found->tokens > first_lacking);
  return found->tokens;
}

SegmentId LedgerState::name(std::shared_ptr<const Segment> segment) {
  segments.emplace(++last_id, std::move(segment));
  return {last_id};
}

Error LedgerState::no_room(std::int64_t tokens, const BlockCounts& needed) const {
  const LedgerConfig& config = shared.config();
  const std::int64_t bytes = config.bytes_of(needed);
  const std::int32_t own = needed[kOwnFormat];
  const std::string open =
      bytes == own * config.block_bytes(kOwnFormat)
          ? ""
          : base::str_cat(" and ", base::format_bytes(bytes - own * config.block_bytes(kOwnFormat)),
                          " of open blocks");
  return {
      .code = ErrorCode::kOutOfBlocks,
      .message = base::str_cat(
          "cannot make room for ", tokens, " tokens: needs ", own, " blocks", open, ", ",
          shared.num_available() - std::min(shared.index().num_unused(), shared.num_available()),
          " free and ", std::min(shared.index().num_unused(), shared.num_available()),
          " evictable of ", config.num_blocks, "; close sequences or raise kv_budget"),
      .needed_bytes = bytes,
      .free_bytes = shared.num_available() * config.block_bytes(kOwnFormat)};
}

Error LedgerState::no_state() const {
  return {.code = ErrorCode::kOutOfBlocks,
          .message = base::str_cat("no state is free: ", states.num_states(),
                                   " of the model's states are held by sequences; close some, or "
                                   "raise kv_budget or state_share")};
}

LedgerState::Prefix LedgerState::cached_prefix(std::span<const TokenId> tokens,
                                               std::string_view salt, BehindWindow past) const {
  Prefix prefix{.blocks = cached_path(tokens, salt)};
  const std::int32_t block_tokens = shared.config().block_tokens;
  prefix.known_tokens = static_cast<std::int32_t>(prefix.blocks.size()) * block_tokens;
  if (!states.exist()) {
    const std::int32_t usable = usable_blocks(shared, prefix.blocks, past == BehindWindow::kKeeps);
    prefix.blocks.resize(static_cast<std::size_t>(usable));
    prefix.tokens = usable * block_tokens;
    return prefix;
  }
  const auto has_blocks = [&](std::int32_t length) {
    return std::cmp_less_equal(length / block_tokens, prefix.blocks.size());
  };
  std::optional<States::Found> found;
  if (shared.config().prefix_cache && !tokens.empty()) {
    found = states.find(tokens.first(tokens.size() - 1), salt, has_blocks);
  }
  prefix.tokens = found ? found->tokens : 0;
  prefix.state = found ? found->state : StateRef{};
  prefix.known_tokens = std::max(prefix.known_tokens, prefix.tokens);
  if (shared.config().open_format()) {  // rows see their own block as it was computed
    prefix.blocks.resize(static_cast<std::size_t>(prefix.tokens / block_tokens));
  }
  return prefix;
}

// Returns the cached blocks that a prompt begins with. The last token is always computed: its
// logits are wanted.
std::vector<BlockRef> LedgerState::cached_path(std::span<const TokenId> tokens,
                                               std::string_view salt) const {
  if (!shared.config().prefix_cache || tokens.empty()) {
    return {};
  }
  return shared.index().match(tokens.first(tokens.size() - 1), salt);
}

LedgerCounts LedgerState::counts() const {
  const BlockPool& pool = shared.pool();
  LedgerCounts counts;
  const std::int64_t block_bytes = shared.config().block_bytes(kOwnFormat);
  const WindowParts& parts = shared.parts();
  const std::int64_t full_bytes = shared.config().full_bytes();
  const std::int64_t part_bytes = shared.config().window_group.block_bytes;
  const std::int32_t unused = shared.index().num_unused();
  counts.blocks_total = shared.config().num_blocks;
  counts.bytes_total = shared.config().budget_bytes();
  counts.bytes_cached = unused * full_bytes + parts.num_idle() * part_bytes;
  counts.blocks_cached = static_cast<std::int32_t>(counts.bytes_cached / block_bytes);
  counts.bytes_in_use = (pool.num_taken() - shared.reserved().size() - unused) * full_bytes +
                        (parts.num_there() - parts.num_idle()) * part_bytes +
                        shared.lent().bytes_in_use();
  counts.window_block_bytes = part_bytes;
  counts.bytes_window_in_use = (parts.num_there() - parts.num_idle()) * part_bytes;
  counts.bytes_free = counts.bytes_total - counts.bytes_cached - counts.bytes_in_use;
  counts.bytes_lent = shared.lent().bytes_lent();
  counts.blocks_in_use =
      static_cast<std::int32_t>((counts.bytes_in_use + block_bytes - 1) / block_bytes);
  counts.blocks_free = counts.blocks_total - counts.blocks_cached - counts.blocks_in_use;
  counts.evictions = shared.num_evictions();
  counts.evictions_closed = shared.num_evictions(PrefixMiss::Why::kClosed);
  counts.evictions_expired = shared.num_evictions(PrefixMiss::Why::kExpired);
  counts.evictions_later = shared.num_evictions(PrefixMiss::Why::kReturnsLater);
  counts.blocks_moved = shared.num_moved();
  counts.blocks_coalesced = blocks_coalesced;
  counts.blocks_reserved = shared.reserved().size();
  counts.blocks_taken = pool.num_acquired();
  counts.sessions = shared.index().order().num_sessions();
  counts.states_total = states.num_states();
  counts.restore_points = states.num_points();
  counts.tokens_replayed = tokens_replayed;
  counts.states_in_use = counts.states_total - states.num_available();
  counts.tokens_reused = tokens_reused;
  return counts;
}

}  // namespace quire::kv
