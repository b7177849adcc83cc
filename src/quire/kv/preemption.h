// Preemption: takes the KV of sequences away and gives back as much as is still cached. A view:
// Ledger::preemption() lends it.
//
// An unknown id is a broken invariant of the caller (QUIRE_CHECK).
#pragma once

#include <cstdint>
#include <span>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"

namespace quire::kv {

struct LedgerState;

class Preemption {
 public:
  // Borrows `state`.
  explicit Preemption(LedgerState& state) : state_(&state) {}

  // Returns by how much Ledger::blocks_available() grows exactly if the KV of all of `ids` is
  // dropped.
  [[nodiscard]] std::int32_t blocks_freed_by_drop(std::span<const SeqId> ids) const;
  // Returns how many open blocks become free then.
  [[nodiscard]] std::int32_t open_blocks_freed_by_drop(std::span<const SeqId> ids) const;
  // Drops all KV and keeps the tokens. reattach() may find cached KV again. A composition keeps its
  // segments.
  void drop_kv(SeqId id);
  // Attaches the longest cached prefix to a sequence without KV. Returns its number of tokens.
  std::int32_t reattach(SeqId id);

 private:
  struct Held {
    BlockRef block;
    bool with_part = true;
  };
  struct Freed {
    std::int32_t blocks = 0;
    std::int32_t parts = 0;
  };
  [[nodiscard]] Freed freed_with(std::span<Held> held) const;

  LedgerState* state_;
};

}  // namespace quire::kv
