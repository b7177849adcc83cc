// Sequences: the sequences of a ledger, from open() to close(). A view: Ledger::sequences() lends
// it.
//
// A plain request needs the methods from open() to append() alone. Its step is extend(),
// append_runs() for attention, then advance() and append().
//
// An unknown id is a broken invariant of the caller (QUIRE_CHECK), except in contains() and
// close().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/sequence_use.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

struct LedgerState;

// Says what a fork does with the state of its original, where the model has some.
enum class ForkedState : std::uint8_t { kShared, kNone };

class Sequences {
 public:
  // Borrows `state`.
  explicit Sequences(LedgerState& state) : state_(&state) {}

  // Opens a sequence over `tokens`, without new blocks. With `reuse` its KV begins with the longest
  // cached prefix: whole blocks of equal tokens, at most tokens.size() - 1. So the last token is
  // computed. Without `reuse` it never uses a block that another sequence computed, not even after
  // Preemption::reattach. It is a request of `session` until it is closed; a stale handle counts as
  // none. Sequences of one `salt` find each other's KV, and no other's. A prefix ends where the KV
  // is there that `past` needs, of layers with a window, too.
  [[nodiscard]] SeqId open(std::span<const TokenId> tokens, bool reuse, SessionRef session = {},
                           std::string_view salt = {}, BehindWindow past = BehindWindow::kKeeps);
  // Closes the sequence. Its full blocks stay findable until they are evicted. No effect for an
  // unknown id.
  void close(SeqId id);

  // Returns its own tokens, computed or not. Tokens of segments do not count.
  [[nodiscard]] std::span<const TokenId> tokens(SeqId id) const;
  // Returns its length: the number of its own tokens with KV.
  [[nodiscard]] std::int32_t num_computed(SeqId id) const;
  // Returns its runs in order; the last one is the open run.
  [[nodiscard]] std::vector<RunView> runs(SeqId id) const;
  // Appends its runs to `views`.
  void append_runs(SeqId id, std::vector<RunView>& views) const;

  // Reserves memory for `tokens` tokens in all, so that appending up to there allocates nothing.
  void reserve_memory(SeqId id, std::int64_t tokens);
  // Sets free blocks aside so that its own run can have KV of `tokens` tokens in all. Until then
  // extend() takes no other block, unless a fork makes it copy one, or the run has open blocks.
  // They count as free, and others get them before anything cached is evicted; so a reserve delays
  // nobody. Fewer tokens give blocks back. close() and Preemption::drop_kv give all back,
  // rollback() gives none. Fails with kOutOfBlocks and changes nothing where too few blocks are
  // free.
  [[nodiscard]] Status reserve(SeqId id, std::int64_t tokens);
  // Returns how many new blocks the KV of the next `count` tokens needs, copies on write included.
  [[nodiscard]] BlockNeeds needs(SeqId id, std::int32_t count) const;
  // Makes room for the KV of the next `count` tokens. Takes free blocks, evicts cached ones
  // (EvictionOrder) and copies a shared open block. Copies cached blocks out of the way where the
  // new ones would not lie in extents. Fails with kOutOfBlocks and changes nothing then.
  [[nodiscard]] Status extend(SeqId id, std::int32_t count);
  // Makes room in several sequences, or in none. Precondition: the sequences are distinct.
  [[nodiscard]] Status extend(std::span<const Growth> growths);
  // Books that the KV of the next `count` tokens is stored: the length grows, and blocks behind the
  // window are freed. Full blocks are published, or exchanged for cached ones with the same KV.
  // Precondition: extend() made the room, and the tokens exist.
  void advance(SeqId id, std::int32_t count);
  // Appends a sampled token, which has no KV yet.
  void append(SeqId id, TokenId token);

  // Opens another sequence with the same tokens, KV and salt. It shares every block, the open tail
  // too. Room made by extend and the session stay with the original.
  // One that has no state may be extended, and then closed or given to exchange_kv, and nothing
  // else.
  [[nodiscard]] SeqId fork(SeqId id, ForkedState state = ForkedState::kShared);
  // Cuts tokens and KV to `length` tokens; the blocks behind return. Fails with kInvalidArgument
  // outside [0, tokens], or when the window has freed a block that is needed. Where blocks are
  // written when they are full, KV of a length inside of such a block ends before it. The tokens
  // from there on are computed again, with the same bits. So are those behind the last length whose
  // window is there, and those behind the last restore point, which are owed (ADR 0061).
  [[nodiscard]] Status rollback(SeqId id, std::int32_t length);
  // Exchanges the blocks of two sequences, and the room in them. States stay where they are.
  // Precondition: one is a fork of the other, and neither has tokens or KV that the other lacks.
  void exchange_kv(SeqId a, SeqId b);
  // Closes every sequence opened since `mark`. Allocates nothing.
  void close_since(LedgerMark mark);

  [[nodiscard]] bool contains(SeqId id) const;
  // Returns the format of its open run. One that is not the pool's own has all its blocks.
  [[nodiscard]] FormatId format(SeqId id) const;
  // Returns true if it was not composed, so that its KV follows from its tokens alone.
  [[nodiscard]] bool is_plain(SeqId id) const;
  // Returns how it is used: its salt, and what it does with KV behind the window. Valid until the
  // sequence changes.
  [[nodiscard]] const SequenceUse& use(SeqId id) const;
  // Says what it does with that KV from now on. Returns false, and changes nothing, if it shall
  // keep what has gone. Precondition: a plain sequence, or a window in all layers.
  [[nodiscard]] bool set_behind_window(SeqId id, BehindWindow past);
  [[nodiscard]] std::int32_t num_blocks_held(SeqId id) const;
  // Returns true if the block of the last token with KV has room and another holder: extend() then
  // copies it.
  [[nodiscard]] bool shares_open_block(SeqId id) const;

 private:
  LedgerState* state_;
};

}  // namespace quire::kv
