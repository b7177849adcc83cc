// LedgerState: all that a ledger consists of. Ledger owns it, and the views of the ledger share it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/losing_points.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

struct LedgerState {
  explicit LedgerState(const LedgerConfig& config)
      : shared(config, [this](BlockRef block) { losing.block_goes(block); }),
        states(config.num_states),
        losing(shared, states) {}

  // Returns a sequence. Precondition (QUIRE_CHECK): the id is known.
  [[nodiscard]] Sequence& sequence(SeqId id) {
    const auto found = sequences.find(id.value);
    QUIRE_CHECK(found != sequences.end(), "no such sequence in the ledger");
    return found->second;
  }
  SeqId add(Sequence sequence);
  // Closes the sequence. No effect for an unknown id.
  void close(SeqId id);
  // Makes the sequence a request of `session`, and of no other session.
  void assign(SeqId id, SessionRef session);
  // Attaches the longest cached prefix to a sequence without KV. Returns its number of tokens.
  std::int32_t reattach(SeqId id);

  // Returns the states of a sequence; null where the model has none, or a fork has left it out.
  [[nodiscard]] SequenceStates* states_of(SeqId id) {
    const auto found = sequence_states.find(id.value);
    return found == sequence_states.end() ? nullptr : &found->second;
  }
  // Returns the blocks for the maps of a sequence; null for none.
  [[nodiscard]] std::shared_ptr<BlockTable> maps_of(SeqId id) const {
    const auto found = sequence_maps.find(id.value);
    return found == sequence_maps.end() ? nullptr : found->second;
  }
  // Takes up the last restore point of a sequence that is not behind `length`. Returns its length;
  // 0 for none.
  [[nodiscard]] std::int32_t restore_before(SeqId id, std::int32_t length);

  SegmentId name(std::shared_ptr<const Segment> segment);

  // Returns the refusal of room for the KV of `tokens` tokens that needs so many blocks.
  [[nodiscard]] Error no_room(std::int64_t tokens, const BlockCounts& needed) const;

  // Returns the refusal of a state.
  [[nodiscard]] Error no_state() const;

  // A cached prefix: full blocks and, where the model has states, the last point within it. Blocks
  // behind the point are owed.
  struct Prefix {
    std::vector<BlockRef> blocks;
    std::int32_t tokens = 0;
    StateRef state;
    std::int32_t known_tokens = 0;  // of the longest history known
  };
  // Returns the longest prefix of `tokens` from which a sequence can go on, without the last token.
  [[nodiscard]] Prefix cached_prefix(std::span<const TokenId> tokens, std::string_view salt,
                                     BehindWindow past) const;
  // Returns the blocks of the longest cached prefix of `tokens`, without the last token.
  [[nodiscard]] std::vector<BlockRef> cached_path(std::span<const TokenId> tokens,
                                                  std::string_view salt) const;
  [[nodiscard]] LedgerCounts counts() const;

  SharedBlocks shared;  // before everything that holds its blocks
  States states;        // before what holds them
  LosingPoints losing;
  std::unordered_map<std::uint64_t, Sequence> sequences;
  std::unordered_map<std::uint64_t, SequenceStates> sequence_states;  // where the model has some
  // Blocks for the maps of sequences that are to be sealed with some (segment.h).
  std::unordered_map<std::uint64_t, std::shared_ptr<BlockTable>> sequence_maps;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Segment>> segments;
  std::uint64_t last_id = 0;  // last id of sequences and segments
  // Segments whose tails the copies move that are ordered, and those that were taken last.
  std::vector<SegmentId> tails_moving, tails_moved;
  std::int64_t blocks_coalesced = 0;
  std::int64_t tokens_reused = 0;
  std::int64_t tokens_replayed = 0;  // known ones that lie behind a restore point
};

}  // namespace quire::kv
