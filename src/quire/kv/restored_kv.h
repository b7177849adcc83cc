// RestoredKV: KV that a caller reads from a file into a sequence's blocks, perhaps in the
// background, instead of computing it. A view: Ledger::restored_kv() lends it.
//
// An unknown id is a broken invariant of the caller (QUIRE_CHECK).
#pragma once

#include <cstdint>

#include "quire/base/ids.h"
#include "quire/result.h"

namespace quire::kv {

struct LedgerState;

class RestoredKV {
 public:
  // Borrows `state`.
  explicit RestoredKV(LedgerState& state) : state_(&state) {}

  // Prepares for KV of the first `num_tokens` tokens that the caller will store (ADR 0023). The
  // length begins behind the blocks that the sequence frees by then, unless so much is cached, and
  // Sequences::extend takes no block for them. The caller stores the other tokens up to
  // `num_tokens` and advances over them before any other call. KV that is not cached already is
  // not published.
  void begin_behind_window(SeqId id, std::int32_t num_tokens);
  // Prepares likewise where some layers have a window and others have none (ADR 0056). The first
  // `blocks` blocks get no window part, and the length begins behind them, unless so much is
  // cached. The caller makes room for the other tokens up to `num_tokens`, stores the full parts of
  // these blocks too, advances, and calls publish(). If it cannot, it drops the KV. Fails with
  // kOutOfBlocks, and changes nothing, where room for all of that is lacking. Precondition: a plain
  // sequence that frees KV behind the window, and ends with a block.
  [[nodiscard]] Status begin_without_parts(SeqId id, std::int32_t num_tokens, std::int32_t blocks);
  // Books KV that is still being written. Its blocks, and blocks behind them, are published by
  // publish(), which says that the KV is there. Precondition: no window frees blocks of it.
  void advance_unpublished(SeqId id, std::int32_t count);
  void publish(SeqId id);

 private:
  LedgerState* state_;
};

}  // namespace quire::kv
