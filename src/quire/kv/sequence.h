// Sequence: tokens and where their KV is. The one owner of its length.
//
// 1. A sequence is a list of sealed runs (segments in use, shared and never written) and one open
//    run that grows. A plain prompt is an open run at position 0 and nothing else.
// 2. Its tokens are those of the open run; its length is those of them that have KV.
// 3. The open run has the pool's own format. A composed sequence that is made to be sealed may have
//    another one, and then has blocks for all its tokens from the beginning. Where the format is
//    written block by block, rows of a block that is not full lie in an open block.
// 4. It writes only into room that `extend` made. Room is never shared: a partly filled block that
//    somebody else holds is copied before room is made in it.
// 5. Full blocks of a plain sequence are published in the prefix index as soon as they are written.
//    A block goes behind the one before it, as long as that one is known there. The first one goes
//    behind the root of the sequence's salt. So behind blocks that were never here nothing is
//    published.
// 6. Blocks may be set aside for it (reserved_blocks.h). It takes those first, and gives back to
// them.
// 7. Its last block may hold tails of several sequences while none of them goes on (coalescing.h).
// 8. A sequence that has taken up a restore point inside of a block has no block there before room
//    is made (restore_points.h). A full block that is known is there.
// 9. A sequence may owe tokens: their KV is there, and the state behind them is not. The next steps
//    compute them, and write none of their KV (ADR 0061).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/reserved_blocks.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence_use.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

struct OpenRun {
  FormatId format;  // format of `blocks`
  BlockTable blocks;
  OpenBlocks open_blocks;           // where the pool's own format is written block by block
  std::int32_t num_tokens = 0;      // tokens with KV, behind which the next step goes on
  std::int32_t kept_tokens = 0;     // tokens with KV, if more: those behind num_tokens are owed
  std::int32_t start_position = 0;  // use position of run token 0
  std::int32_t room = 0;            // tokens that may be written without another extend()
  std::int32_t replays_until = 0;   // tokens before here were known: computing them is a replay
  // Slot of the last block in which its tokens begin: not 0 where that block was coalesced.
  std::int32_t tail_slot = 0;
  // Blocks are set aside for this holder, for KV of so many tokens.
  ReservedBlocks::Holder holder = ReservedBlocks::kNobody;
  std::int64_t reserved_tokens = 0;

  // Returns the tokens whose KV is there, owed ones too.
  [[nodiscard]] std::int32_t rows() const { return std::max(num_tokens, kept_tokens); }
};

struct SealedRun {
  std::shared_ptr<const Segment> segment;
  std::int32_t start_position = 0;
  MergeRank rank;
};

class Sequence {
 public:
  // Makes a plain sequence without KV. `shared` is borrowed.
  Sequence(SharedBlocks& shared, std::span<const TokenId> tokens, SequenceUse use);
  // Makes a sequence behind `sealed` runs, if any. `tokens` are its own, from `open_position` on.
  // It is not plain even without a run: it has no salt and adopts nothing, so the index is not for
  // it. With another format than the pool's own it has blocks of that for all its tokens. They are
  // room, unless they are written block by block. Precondition: SharedBlocks::lacking() lacks none.
  Sequence(SharedBlocks& shared, std::span<const TokenId> tokens, std::vector<SealedRun> sealed,
           std::int32_t open_position, FormatId format = {});

  // Returns a copy that shares the blocks and belongs to nobody's request.
  [[nodiscard]] Sequence fork() const;
  // Returns the KV of the open run as a segment with these maps, which one of a model with states
  // must have. kInvalidArgument when there is no KV, or when the window has freed a part.
  // Without `whole`, window parts may be lacking: the segment only names the blocks.
  [[nodiscard]] Result<Segment> seal(std::shared_ptr<const BlockTable> maps, bool whole) const;

  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  [[nodiscard]] std::int32_t num_computed() const { return open_.num_tokens; }
  [[nodiscard]] std::span<const SealedRun> sealed() const { return sealed_; }
  [[nodiscard]] const OpenRun& open() const { return open_; }
  [[nodiscard]] bool is_plain() const { return !composed_; }
  [[nodiscard]] const SequenceUse& use() const { return use_; }
  void assign(SessionRef session) { use_.session = session; }
  // Exchanges the blocks of the open runs, and the room in them. Precondition: both sequences have
  // the same tokens, KV and sealed runs, and their open runs one format.
  void exchange_kv(Sequence& other);

  // Does what Sequences::shares_open_block says.
  [[nodiscard]] bool must_copy_open_block() const;
  // Returns the new blocks that the KV of the next `count` tokens needs, copies on write included.
  [[nodiscard]] BlockNeeds needs(std::int32_t count) const;
  // Makes room; may order copies. Takes open blocks from the front of `open`. Precondition: the
  // own blocks of needs(count) are available, and `open` has the open ones.
  void extend(std::int32_t count, std::span<const BlockRef>& open);
  // Notes that `count` more tokens have KV. Precondition: count <= open().room, and the tokens
  // are there.
  void advance(std::int32_t count);
  // Does what RestoredKV::advance_unpublished and RestoredKV::publish say.
  void advance_unpublished(std::int32_t count);
  void publish() { publish_from(0); }
  void append(TokenId token) { tokens_.push_back(token); }
  // Does what Sequences::reserve_memory says, and for a holder what Sequences::reserve says. False
  // where too few blocks are free for that.
  bool reserve(std::int64_t tokens, ReservedBlocks::Holder holder = ReservedBlocks::kNobody);
  // Lets the tail of the open run, which is in its last block, be in slots of another block from
  // `slot` on. Takes over the caller's reference.
  void move_tail(BlockRef to, std::int32_t slot);
  // Lets the length begin behind so many blocks, unless so much has KV. Where all layers have a
  // window they are given up, else they have no window part. Precondition: there is room for them.
  void begin_behind(std::int32_t blocks);
  // Adds to SequenceUse::points.
  void add_point(std::int32_t length);
  // Does what Sequences::set_behind_window says.
  [[nodiscard]] bool set_behind_window(BehindWindow past);
  // Does what Sequences::rollback says. Given `from`, a length before that of the KV, it goes on
  // from there. The tokens between are owed, and their KV is kept where may_owe() allows it.
  [[nodiscard]] Status rollback(std::int32_t length, std::optional<std::int32_t> from = {});
  // Gives up the KV of the open run, and its blocks where they have the pool's own format. kOwed
  // gives up the KV of owed tokens alone, and that of the block in which the state stands.
  enum class Dropped : std::uint8_t { kAll, kOwed };
  void drop_kv(Dropped what = Dropped::kAll);
  // Makes `path`, blocks of the prefix index, the first KV; room made before is given back. The
  // next step goes on behind `tokens` tokens. Tokens of the path behind these are owed. KV of
  // tokens behind the path lies elsewhere. `known` tokens were known. Precondition: a plain
  // sequence without a state, whose blocks, if any, are of owed tokens.
  void attach(std::span<const BlockRef> path, std::int32_t tokens, std::int32_t known);

 private:
  void publish_from(std::int32_t block);
  [[nodiscard]] bool adopt_known(std::int32_t block, BlockRef known);
  void let_parts_go();
  void give_up_blocks();
  [[nodiscard]] bool is_at_point(std::int32_t block) const;
  void make_room_in(FormatId format);
  void give_up_behind(std::int32_t count);
  struct Need {
    std::int32_t stored = 0;  // blocks of the run's format
    std::int32_t open = 0;
  };
  [[nodiscard]] Need need_of(std::int32_t count) const;
  [[nodiscard]] std::optional<FormatId> opens_as() const {
    return shared_->config().formats[open_.format.value].open;
  }
  [[nodiscard]] bool opens_blocks() const { return opens_as().has_value(); }
  [[nodiscard]] std::int32_t run_blocks(std::int64_t tokens) const;
  [[nodiscard]] bool lacks_open_block(std::int64_t tokens) const;
  [[nodiscard]] const OpenBlock* last_open_block() const;
  void extend_by_block(std::int32_t count, std::span<const BlockRef>& open);

  SharedBlocks* shared_;
  std::vector<TokenId> tokens_;
  std::vector<SealedRun> sealed_;
  OpenRun open_;
  std::int32_t found_blocks_ = 0;  // value of Segment::found_blocks
  bool composed_ = false;
  SequenceUse use_;
};

// Returns the last block of a sequence that the prefix index knows, or the root when there is none.
[[nodiscard]] BlockRef last_cached(const SharedBlocks& shared, const Sequence& sequence);

// Returns whether KV behind the state of a sequence can stay. There is a state, and the KV follows
// from the tokens before it, row by row.
[[nodiscard]] bool may_owe(const LedgerConfig& config, const Sequence& sequence);

// Returns the tokens of sealed runs; blocks_of returns the blocks that they cover.
[[nodiscard]] std::int32_t tokens_of(std::span<const SealedRun> runs);
[[nodiscard]] std::int32_t blocks_of(std::span<const SealedRun> runs);

// Returns how many blocks the first `tokens` slots of a run take.
[[nodiscard]] std::int32_t blocks_for_tokens(const LedgerConfig& config, std::int64_t tokens);

// Returns how many of the first `length` tokens of a run have KV that can stay. Where it is stored
// block by block, rows as they were computed may have gone, up to the beginning of their block.
[[nodiscard]] std::int32_t stored_length(const LedgerConfig& config, const OpenRun& run,
                                         std::int32_t length);

// Returns the largest length up to `length` from which a run can go on: the window parts are there.
[[nodiscard]] std::int32_t usable_length(const SharedBlocks& shared, const OpenRun& run,
                                         std::int32_t length);

}  // namespace quire::kv
