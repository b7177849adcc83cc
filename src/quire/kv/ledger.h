// Ledger: owner of who uses which block for which tokens, and of what may be evicted. It knows
// numbers (blocks, tokens), never a tensor. The shelves (kv_store) hold the bytes.
//
// Thread rule: one thread, the engine's, owns it. An unknown sequence id is a broken invariant of
// the caller (QUIRE_CHECK), except in contains() and close(). The README has the numbered
// invariants.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

class Ledger {
 public:
  // Makes a ledger whose blocks are all free. Precondition: config.validate().ok().
  explicit Ledger(const LedgerConfig& config);
  ~Ledger();
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;

  [[nodiscard]] const LedgerConfig& config() const;

  // Returns the length of the longest prefix of `tokens` that is cached for `salt`, at most
  // tokens.size() - 1. Uses nothing. Cost: O(match).
  [[nodiscard]] std::int32_t match(std::span<const TokenId> tokens,
                                   std::string_view salt = {}) const;
  // Returns that length with the blocks that attaching it would hold. Cost: O(match).
  [[nodiscard]] PrefixMatch probe(std::span<const TokenId> tokens,
                                  std::string_view salt = {}) const;

  // Returns the length of the match of each salt that has one, the longest first. For the operator;
  // names no salt. Cost: O(salts * match).
  [[nodiscard]] std::vector<std::int32_t> match_each_salt(std::span<const TokenId> tokens) const;

  // Returns the reason why the match ends where it does. Cost: O(match + blocks).
  [[nodiscard]] PrefixMiss explain(std::span<const TokenId> tokens,
                                   std::string_view salt = {}) const;

  // Opens a sequence over `tokens`, without new blocks. With `reuse` its KV begins with the longest
  // cached prefix: whole blocks of equal tokens, at most tokens.size() - 1, so that the last token
  // is computed. Without `reuse` it never uses a block that another sequence computed, not even
  // after reattach. It is a request of `session` until it is closed; a stale handle counts as none.
  // Sequences of one `salt` find each other's KV, and no other's.
  [[nodiscard]] SeqId open(std::span<const TokenId> tokens, bool reuse, SessionRef session = {},
                           std::string_view salt = {});

  // Opens another sequence with the same tokens, KV and salt. It shares every block, the open tail
  // too. Room made by extend and the session stay with the original.
  [[nodiscard]] SeqId fork(SeqId id);

  // Closes the sequence. Its full blocks stay findable until they are evicted. No effect for an
  // unknown id.
  void close(SeqId id);

  [[nodiscard]] bool contains(SeqId id) const;
  // Returns the tokens of its segments and its own, in order. Cost: O(tokens).
  [[nodiscard]] std::vector<TokenId> joined_tokens(SeqId id) const;
  // Returns its own tokens, computed or not. Tokens of segments do not count.
  [[nodiscard]] std::span<const TokenId> tokens(SeqId id) const;
  // Returns its length: the number of its own tokens with KV.
  [[nodiscard]] std::int32_t num_computed(SeqId id) const;
  // Returns its runs in order; the last one is the open run.
  [[nodiscard]] std::vector<RunView> runs(SeqId id) const;
  // Appends its runs to `views`.
  void append_runs(SeqId id, std::vector<RunView>& views) const;
  [[nodiscard]] std::int32_t num_blocks_held(SeqId id) const;
  // Returns true if it was not composed, so that its KV follows from its tokens alone.
  [[nodiscard]] bool is_plain(SeqId id) const;
  // Returns the salt of a plain sequence.
  [[nodiscard]] const std::string& salt(SeqId id) const;

  // Returns how many new blocks the KV of the next `count` tokens needs, copies on write included.
  [[nodiscard]] std::int32_t blocks_needed(SeqId id, std::int32_t count) const;
  // Returns how many blocks extend() could obtain now: free plus evictable.
  [[nodiscard]] std::int32_t blocks_available() const;
  // Returns by how much blocks_available() grows exactly if the KV of all of `ids` is dropped.
  [[nodiscard]] std::int32_t blocks_freed_by_drop(std::span<const SeqId> ids) const;
  // Returns the fewest blocks with which a plain sequence of `num_tokens` tokens can be computed,
  // one token at a time. With a window these are the blocks that the window touches.
  [[nodiscard]] std::int64_t min_blocks(std::int64_t num_tokens) const;

  // Makes room for the KV of the next `count` tokens. Takes free blocks, evicts cached ones
  // (EvictionOrder) and copies a shared open block. Copies cached blocks out of the way where the
  // new ones would not lie in extents. Fails with kOutOfBlocks and changes nothing then.
  [[nodiscard]] Status extend(SeqId id, std::int32_t count);
  // Returns true if the block of the last token with KV has room and another holder: extend() then
  // copies it.
  [[nodiscard]] bool shares_open_block(SeqId id) const;
  // Returns a handle to the block as it is now; it differs once the block has been free.
  [[nodiscard]] BlockRef current(BlockId id) const;
  // Returns the copies ordered since the last call. The caller makes them in this order before it
  // writes KV. If a copy fails, the caller forgets the cache, since cached KV may be wrong then.
  [[nodiscard]] std::vector<BlockCopy> take_copies();

  // Books that the KV of the next `count` tokens is stored: the length grows, and blocks behind the
  // window are freed. Full blocks are published, or exchanged for cached ones with the same KV.
  // Precondition: extend() made the room, and the tokens exist.
  void advance(SeqId id, std::int32_t count);
  // Books KV that is still being written. Its blocks, and blocks behind them, are published by
  // publish(), which says that the KV is there. Precondition: no window.
  void advance_unpublished(SeqId id, std::int32_t count);
  void publish(SeqId id);

  // Prepares for KV of the first `num_tokens` tokens that the caller will store (ADR 0023). The
  // length begins behind the blocks that the window frees by then, unless so much is cached, and
  // extend() takes no block for them. The caller stores the other tokens up to `num_tokens` and
  // advances over them before any other call. KV that is not cached already is not published.
  void begin_behind_window(SeqId id, std::int32_t num_tokens);

  // Appends a sampled token, which has no KV yet.
  void append(SeqId id, TokenId token);
  // Reserves memory for `tokens` tokens in all, so that appending up to there allocates nothing.
  void reserve(SeqId id, std::int64_t tokens);

  // Cuts tokens and KV to `length` tokens; the blocks behind return. Fails with kInvalidArgument
  // outside [0, tokens], or when the window has freed a block that is needed.
  [[nodiscard]] Status rollback(SeqId id, std::int32_t length);

  // Drops all KV and keeps the tokens, for a preemption. reattach() may find cached KV again. A
  // composition keeps its segments.
  void drop_kv(SeqId id);
  // Attaches the longest cached prefix to a sequence without KV. Returns its number of tokens.
  std::int32_t reattach(SeqId id);

  // Makes a segment of the KV of the open run. The segment stands at positions from 0 and lives
  // until drop_segment. Fails with kInvalidArgument without KV, or when the window has freed a
  // part.
  [[nodiscard]] Result<SegmentId> seal(SeqId id);
  // Makes a segment whose KV the caller stores into its blocks, after take_copies and before any
  // use. `stored_from` is the position that the key of its first token is rotated to. Fails with
  // kInvalidArgument for no tokens, and with kOutOfBlocks.
  [[nodiscard]] Result<SegmentId> reserve_segment(std::vector<TokenId> tokens,
                                                  std::int32_t stored_from = 0);
  // Makes a segment of every run that has KV, also of those that the sequence was composed of, at
  // their places. The caller passes them to compose() and drop_segment(). Fails as seal() does.
  [[nodiscard]] Result<std::vector<SegmentUse>> seal_runs(SeqId id);
  // Forgets the segment's name. Its blocks return when no sequence uses them. False if unknown.
  bool drop_segment(SegmentId id);
  // A moment of the ledger, for a caller that gives up half-way. Sequences and segments made since
  // then are closed and dropped again, without allocating; `keeps` spares segments.
  struct Mark {
    std::uint64_t last_id = 0;
  };
  [[nodiscard]] Mark mark() const;
  void close_since(Mark mark);
  void drop_segments_since(Mark mark, const std::function<bool(SegmentId)>& keeps);
  // Drops the segment and, from its end on, uncaches the blocks that its sequence computed. Stops
  // at a block that is in use or has another cached block behind it. False if unknown.
  bool forget_segment(SegmentId id);
  // Makes a segment with the same tokens in which the KV of `tokens` (ascending indices) may be
  // written once more. Blocks that hold one of them are copies of its own; the others are shared.
  // Fails with kNotFound, kInvalidArgument for an index outside, or kOutOfBlocks, and changes
  // nothing then.
  [[nodiscard]] Result<SegmentId> derive(SegmentId id, std::span<const std::int32_t> tokens);

  // Returns the number of blocks that a segment covers; 0 if unknown.
  [[nodiscard]] std::int32_t num_blocks(SegmentId id) const;
  // Returns nullptr if unknown. The segment is valid until it is dropped.
  [[nodiscard]] const Segment* segment(SegmentId id) const;

  // Opens a sequence behind these segments at these positions. It shares them; its own tokens are
  // those of `tail` and appended ones. Its blocks are never published, since their KV does not
  // follow from the token ids alone. Fails with kNotFound for an unknown segment. Fails with
  // kInvalidArgument for a position below 0, an end above 2^31 - 1, or a part that is not there.
  // Cost: O(segments + tail), plus O(tokens) for each segment of which a part is used.
  [[nodiscard]] Result<SeqId> compose(std::span<const SegmentUse> uses, ComposeTail tail = {});
  // Return the tokens of the segments before the sequence's own, and the blocks that they cover.
  [[nodiscard]] std::int32_t segment_tokens(SeqId id) const;
  [[nodiscard]] std::int32_t segment_blocks(SeqId id) const;

  // Set and return the hints of sessions, which decide the cached blocks that go first
  // (eviction_order.h). Handles may be stale. The clock stands still between two calls of set_time.
  void set_time(TimePoint now);
  [[nodiscard]] TimePoint now() const;
  [[nodiscard]] SessionRef open_session();
  [[nodiscard]] Retention retention(SessionRef session) const;
  void set_retention(SessionRef session, const Retention& retention);
  // Ends a session: blocks that it alone has used go first.
  void close_session(SessionRef session);
  // Forgets the hints of a session.
  void forget_session(SessionRef session);

  // Makes the sequence a request of `session` from now on, and of no other session.
  void assign(SeqId id, SessionRef session);
  // Returns what EvictionOrder::standing() returns.
  [[nodiscard]] Standing standing(std::span<const SessionRef> users, bool others,
                                  TimePoint last_use) const;

  // Forgets every cached block that no sequence uses. Returns how many became free.
  std::int32_t clear_cache();

  [[nodiscard]] LedgerCounts counts() const;
  // Returns kInternal that names the first broken invariant (README.md of this module). For tests.
  // Cost: O(all blocks and tokens).
  [[nodiscard]] Status check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::kv
