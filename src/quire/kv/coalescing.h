// Coalescing: tails of sequences that do not go on share blocks, so that whole blocks become free.
// A view: Ledger::coalescing() lends it.
//
// The tail of a sequence is its tokens in a last block that is not full. A coalesced one begins at
// a slot of its block behind another's tail. Attention does not read it there, since the bits of a
// row follow from the places of the tokens before it. So Sequences::extend first copies it to the
// beginning of a block of its own. That is a copy on write, as of a block that a fork shares.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"

namespace quire::kv {

struct LedgerState;

// A tail that moves: `tokens` slots.
struct TailMove {
  SeqId sequence;
  BlockRef from;
  BlockRef to;
  std::int32_t from_slot = 0;
  std::int32_t to_slot = 0;
  std::int32_t tokens = 0;
};

struct CoalescingPlan {
  std::vector<TailMove> moves;  // each frees its `from`
};

class Coalescing {
 public:
  // Borrows `state`.
  explicit Coalescing(LedgerState& state) : state_(&state) {}

  // Returns moves of tails in the pool's own format that nobody writes and nobody shares. It leaves
  // sequences with room or with reserved blocks, and blocks that the prefix index knows. The
  // fullest blocks stay where they are. Cost: O(sequences * log(sequences)).
  [[nodiscard]] CoalescingPlan plan() const;
  // Makes the moves, which orders copies (Ledger::take_copies). Returns the number of blocks that
  // become free: those of the plan. Precondition (QUIRE_CHECK): the ledger is as it was planned
  // for.
  std::int32_t apply(const CoalescingPlan& plan);

 private:
  LedgerState* state_;
};

}  // namespace quire::kv
