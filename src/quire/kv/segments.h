// Segments: makes runs of tokens with KV immutable, names them, and composes sequences of them. A
// view: Ledger::segments() lends it.
//
// An unknown sequence id is a broken invariant of the caller (QUIRE_CHECK). An unknown segment is a
// typed error or no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

struct LedgerState;

class Segments {
 public:
  // Borrows `state`.
  explicit Segments(LedgerState& state) : state_(&state) {}

  // Makes a segment of the KV of the open run. The segment stands at positions from 0 and lives
  // until drop(). Fails with kInvalidArgument without KV, or when the window has freed a part.
  [[nodiscard]] Result<SegmentId> seal(SeqId id);
  // Makes a segment for forget() alone. It may lack KV of layers with a window.
  [[nodiscard]] Result<SegmentId> seal_to_forget(SeqId id);
  // Makes a segment of every run that has KV, also of those that the sequence was composed of, at
  // their places. The caller passes them to compose() and drop(). Fails as seal() does.
  [[nodiscard]] Result<std::vector<SegmentUse>> seal_runs(SeqId id);
  // Makes a segment whose KV the caller stores into its blocks, after Ledger::take_copies and
  // before any use. `stored_from` is the position that the key of its first token is rotated to.
  // The blocks have this format. A last one that is not full has `last`, or else the format that
  // this one opens as. Other formats than the pool's own borrow slabs where they have no free
  // block. Fails with kInvalidArgument for no tokens or an unknown format, and with kOutOfBlocks.
  [[nodiscard]] Result<SegmentId> reserve(std::vector<TokenId> tokens, std::int32_t stored_from = 0,
                                          FormatId format = {},
                                          std::optional<FormatId> last = std::nullopt);
  // Makes a segment with the same tokens in which the KV of `tokens` (ascending indices) may be
  // written once more. Blocks that hold one of them are copies of its own, in their formats; the
  // others are shared.
  // Fails with kNotFound, kInvalidArgument for an index outside, or kOutOfBlocks, and changes
  // nothing then.
  [[nodiscard]] Result<SegmentId> derive(SegmentId id, std::span<const std::int32_t> tokens);

  // Makes a segment of the tokens [first, first + count) of another one, whose blocks it shares. It
  // begins where a block does, and ends so or with the other one. Fails with kNotFound, with
  // kOutOfBlocks as compose() does, and with kInvalidArgument for other tokens. Cost: O(count).
  [[nodiscard]] Result<SegmentId> slice(SegmentId id, std::int32_t first, std::int32_t count);

  // Forgets the segment's name. Its blocks return when no sequence uses them. False if unknown.
  bool drop(SegmentId id);
  // Drops every segment made since `mark` that `keeps` does not spare. Allocates nothing.
  void drop_since(LedgerMark mark, const std::function<bool(SegmentId)>& keeps);
  // Drops the segment and, from its end on, uncaches the blocks that its sequence computed. Stops
  // at a block that is in use or has another cached block behind it. False if unknown.
  bool forget(SegmentId id);

  // Returns nullptr if unknown. The segment is valid until it is dropped.
  [[nodiscard]] const Segment* find(SegmentId id) const;
  // Returns the number of blocks that a segment covers; 0 if unknown.
  [[nodiscard]] std::int32_t num_blocks(SegmentId id) const;
  // Returns the bytes of these blocks; 0 if unknown.
  [[nodiscard]] std::int64_t num_bytes(SegmentId id) const;

  // Opens a sequence behind these segments at these positions. It shares them; its own tokens are
  // those of `tail` and appended ones. Its blocks are never published, since their KV does not
  // follow from the token ids alone. Fails with kNotFound for an unknown segment. Fails with
  // kIncompatible where the model has layers with a state and a segment has no maps. Fails with
  // kOutOfBlocks where a tail that was coalesced finds no block to be read in. Fails with
  // kInvalidArgument for a position below 0, an end above 2^31 - 1, or a part that is not there.
  // Cost: O(segments + tail), plus O(tokens) for each segment of which a part is used.
  [[nodiscard]] Result<SeqId> compose(std::span<const SegmentUse> uses, ComposeTail tail = {});
  // Opens such a sequence whose own run has this format, to be sealed when its KV is there. It has
  // blocks for all tokens of `tail` from the beginning, and no more. So its steps need open blocks
  // at most, and giving up its KV frees no other. The caller makes the copies of
  // Ledger::take_copies before a step.
  // Fails as compose() does, and with kOutOfBlocks. Fails with kInvalidArgument for no tokens, an
  // unknown format, and in another format than the pool's own with a window.
  [[nodiscard]] Result<SeqId> compose_in(FormatId format, std::span<const SegmentUse> uses,
                                         ComposeTail tail);
  // Takes blocks for maps of the sequence's tokens, which seal() gives to the segment. Fails with
  // kOutOfBlocks. The caller writes them before it seals.
  [[nodiscard]] Status hold_maps(SeqId id, std::int32_t blocks);
  // Takes blocks for maps of a segment that has none, which the caller writes before any use. Fails
  // with kNotFound and kOutOfBlocks.
  [[nodiscard]] Status hold_maps(SegmentId id, std::int32_t blocks);
  // Gives the maps of a segment, if it has some, to another one of the same tokens, too. Fails with
  // kNotFound.
  [[nodiscard]] Status share_maps(SegmentId from, SegmentId to);
  // Gives back all but the first blocks for maps. Returns those.
  std::span<const BlockId> trim_maps(SeqId id, std::int32_t blocks);
  // Returns the blocks with the maps of the segments before the sequence's own, in order. Empty
  // ones have none. Valid until the sequence changes.
  [[nodiscard]] std::vector<std::span<const BlockId>> maps_before(SeqId id) const;
  // Returns the tokens of the segments before the sequence's own. blocks_before returns how many
  // blocks of the pool's own format have the bytes of their blocks.
  [[nodiscard]] std::int32_t tokens_before(SeqId id) const;
  [[nodiscard]] std::int32_t blocks_before(SeqId id) const;
  // Returns the tokens of the sequence's segments and its own, in order. Cost: O(tokens).
  [[nodiscard]] std::vector<TokenId> joined_tokens(SeqId id) const;

 private:
  [[nodiscard]] Status set_maps(SegmentId id, std::shared_ptr<const BlockTable> maps);
  [[nodiscard]] Result<SeqId> open_behind(std::span<const SegmentUse> uses, ComposeTail tail,
                                          FormatId format);

  LedgerState* state_;
};

}  // namespace quire::kv
