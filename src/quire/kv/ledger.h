// The ledger: which block holds which tokens, for whom, and what may be evicted. Host only; it
// knows numbers (blocks, tokens), never a tensor. The shelves (kv_store) hold the bytes.
//
// Thread rule: one thread (the engine's) owns it. Calls with the id of a sequence that is not there
// are a broken invariant of the caller, except `contains` and `close`.
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
  // Precondition: config.validate().ok().
  explicit Ledger(const LedgerConfig& config);
  ~Ledger();
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;

  [[nodiscard]] const LedgerConfig& config() const;

  // Tokens of the longest prefix of `tokens` that is cached for `salt`, at most tokens.size() - 1,
  // without using it.
  [[nodiscard]] std::int32_t match(std::span<const TokenId> tokens,
                                   std::string_view salt = {}) const;
  // The same with what it would hold. Cost: O(match).
  [[nodiscard]] PrefixMatch probe(std::span<const TokenId> tokens,
                                  std::string_view salt = {}) const;

  // Why the match ends where it does. Cost: O(match + blocks).
  [[nodiscard]] PrefixMiss explain(std::span<const TokenId> tokens,
                                   std::string_view salt = {}) const;

  // A new sequence over `tokens`; with `reuse` its KV begins with the longest cached prefix (whole
  // blocks, token-exact, at most tokens.size() - 1 tokens, so that the last token is computed).
  // Allocates nothing. Without `reuse` it never uses a block that another sequence computed, not
  // even after reattach. `session`: whose request it is until it is closed; a stale one: nobody's.
  // `salt`: it finds what sequences of this salt have computed, and they what it computes.
  [[nodiscard]] SeqId open(std::span<const TokenId> tokens, bool reuse, SessionRef session = {},
                           std::string_view salt = {});

  // Another sequence with the same tokens, KV and salt; shares every block, the open tail too. Room
  // made by extend stays with the original, and so does the session.
  [[nodiscard]] SeqId fork(SeqId id);

  // Releases the sequence; its full blocks stay findable until evicted. Unknown ids are a no-op.
  void close(SeqId id);

  [[nodiscard]] bool contains(SeqId id) const;
  // Of its segments and its own, in order. O(tokens).
  [[nodiscard]] std::vector<TokenId> joined_tokens(SeqId id) const;
  // Of its own: those of the segments that it was composed of do not count.
  [[nodiscard]] std::span<const TokenId> tokens(SeqId id) const;  // all, computed or not
  [[nodiscard]] std::int32_t num_computed(SeqId id) const;        // tokens with KV: THE length
  [[nodiscard]] std::vector<RunView> runs(SeqId id) const;        // last one is the open run
  void append_runs(SeqId id, std::vector<RunView>& views) const;  // the same, behind others
  [[nodiscard]] std::int32_t num_blocks_held(SeqId id) const;
  // Whether it was not composed, so that its KV follows from its tokens alone.
  [[nodiscard]] bool is_plain(SeqId id) const;
  [[nodiscard]] const std::string& salt(SeqId id) const;  // of a plain one

  // New blocks needed before KV of the next `count` tokens can be written (copy-on-write included).
  [[nodiscard]] std::int32_t blocks_needed(SeqId id, std::int32_t count) const;
  // Blocks that `extend` could obtain now: free plus evictable.
  [[nodiscard]] std::int32_t blocks_available() const;
  // By how much blocks_available grows if the KV of all of `ids` is dropped. Exact.
  [[nodiscard]] std::int32_t blocks_freed_by_drop(std::span<const SeqId> ids) const;
  // Fewest blocks with which a plain sequence of `num_tokens` tokens can be computed, one token at
  // a time: with a window no more than the window touches.
  [[nodiscard]] std::int64_t min_blocks(std::int64_t num_tokens) const;

  // Makes room for the KV of the next `count` tokens: allocates, evicts cached blocks (see
  // EvictionOrder), copies a shared open block on write, and where the blocks would not lie in
  // extents (LedgerConfig::extent_blocks) copies cached ones out of their way. kOutOfBlocks with
  // state unchanged when it cannot.
  [[nodiscard]] Status extend(SeqId id, std::int32_t count);
  // Whether the block of the last token with KV has room and is somebody else's too: `extend` then
  // copies it.
  [[nodiscard]] bool shares_open_block(SeqId id) const;
  // The block as it is now: another one once it has been free.
  [[nodiscard]] BlockRef current(BlockId id) const;
  // Copies ordered since the last call; do them in this order before writing KV. If one fails, what
  // is cached may not be what it should be.
  [[nodiscard]] std::vector<BlockCopy> take_copies();

  // KV of the next `count` tokens is now stored: length grows, full blocks become shareable (and
  // may be exchanged for cached ones with the same KV), blocks behind the window are freed.
  // Precondition: room made by extend, tokens present.
  void advance(SeqId id, std::int32_t count);
  // The same for KV that somebody still writes: its blocks, and those behind them, become shareable
  // when `publish` says that it is there. Without a window only.
  void advance_unpublished(SeqId id, std::int32_t count);
  void publish(SeqId id);

  // For KV of the first `num_tokens` tokens that the caller will store: the length begins behind
  // the blocks of it that the window has freed by then, unless so much is cached, and `extend`
  // takes none for them. What follows them up to `num_tokens` is stored and advanced over before
  // anything else happens to the sequence. Nothing of it is published where it is not cached.
  void begin_behind_window(SeqId id, std::int32_t num_tokens);

  // Adds a token without KV (a sampled one).
  void append(SeqId id, TokenId token);
  // Memory for `tokens` tokens in all: until there are more, what is added allocates nothing.
  void reserve(SeqId id, std::int64_t tokens);

  // Cuts tokens and KV to `length` tokens; blocks return. kInvalidArgument outside [0, tokens] or
  // when the window has already freed what is needed.
  [[nodiscard]] Status rollback(SeqId id, std::int32_t length);

  // Drops all KV but keeps the tokens (preemption); what is cached may be found again by reattach.
  // A composition keeps its segments.
  void drop_kv(SeqId id);
  // Attaches the longest cached prefix to a sequence without KV; returns its tokens.
  std::int32_t reattach(SeqId id);

  // Names the KV of the open run of a sequence: a segment of its own, at positions from 0, that
  // lives until drop_segment. kInvalidArgument when there is none or the window has freed a part.
  [[nodiscard]] Result<SegmentId> seal(SeqId id);
  // A segment whose KV the caller stores into its blocks, after take_copies and before anybody uses
  // it. kInvalidArgument for no tokens, kOutOfBlocks. `stored_from`: the position that the key of
  // its first token is rotated to.
  [[nodiscard]] Result<SegmentId> reserve_segment(std::vector<TokenId> tokens,
                                                  std::int32_t stored_from = 0);
  // Names every run of a sequence that has KV, those that it was composed of included, as segments
  // at their places, for `compose` and `drop_segment`. kInvalidArgument as for `seal`.
  [[nodiscard]] Result<std::vector<SegmentUse>> seal_runs(SeqId id);
  // Forgets the name; blocks return when no sequence uses them. False when unknown.
  bool drop_segment(SegmentId id);
  // For who gives up half-way: what was made since a mark goes again. Needs no memory.
  struct Mark {
    std::uint64_t last_id = 0;
  };
  [[nodiscard]] Mark mark() const;
  void close_since(Mark mark);
  void drop_segments_since(Mark mark, const std::function<bool(SegmentId)>& keeps);
  // The same, and what its sequence has computed is no longer cached either, from its end on: as
  // far as nobody uses it and nothing else is cached behind it.
  bool forget_segment(SegmentId id);
  // A segment with the same tokens in which `tokens` (ascending) may be written once more: blocks
  // that hold one of them are copies of its own, the others are shared. kNotFound,
  // kInvalidArgument for a token outside, kOutOfBlocks; all with state unchanged.
  [[nodiscard]] Result<SegmentId> derive(SegmentId id, std::span<const std::int32_t> tokens);

  // Blocks that a segment covers; 0 when unknown.
  [[nodiscard]] std::int32_t num_blocks(SegmentId id) const;
  // nullptr when unknown. Valid until the segment is dropped.
  [[nodiscard]] const Segment* segment(SegmentId id) const;

  // A sequence behind these segments at these positions: it shares them, and its own tokens are
  // those of `tail` and what is appended. Its blocks are never published in the prefix index, since
  // their KV does not follow from the token ids alone. kNotFound for an unknown segment,
  // kInvalidArgument for a position below 0, an end above 2^31 - 1, or a part that is not there.
  // Cost: O(segments + tail), and O(tokens) for each segment of which a part is used.
  [[nodiscard]] Result<SeqId> compose(std::span<const SegmentUse> uses, ComposeTail tail = {});
  // Tokens of the segments before the sequence's own, and blocks that they cover.
  [[nodiscard]] std::int32_t segment_tokens(SeqId id) const;
  [[nodiscard]] std::int32_t segment_blocks(SeqId id) const;

  // Sessions: what their users say decides which cached blocks go first (eviction_order.h). Handles
  // may be stale. Until the clock is set it stands still, and does so between two settings.
  void set_time(TimePoint now);
  [[nodiscard]] TimePoint now() const;
  [[nodiscard]] SessionRef open_session();
  [[nodiscard]] Retention retention(SessionRef session) const;
  void set_retention(SessionRef session, const Retention& retention);
  // Nobody returns to what it alone has used.
  void close_session(SessionRef session);
  // As if it had never said anything.
  void forget_session(SessionRef session);

  // The sequence is a request of `session` from now on, and no longer of whom it was one of before.
  void assign(SeqId id, SessionRef session);
  // As EvictionOrder::standing.
  [[nodiscard]] Standing standing(std::span<const SessionRef> users, bool others,
                                  TimePoint last_use) const;

  // Forgets every cached block that nobody uses; returns how many became free.
  std::int32_t clear_cache();

  [[nodiscard]] LedgerCounts counts() const;
  // kInternal naming the first broken invariant (README.md of this module); for tests.
  [[nodiscard]] Status check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::kv
