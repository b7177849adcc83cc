// RoomLeft: the blocks that a plan may still give out. It counts; it takes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"

namespace quire::sched {

// Blocks that the KV of some tokens needs: of the pool's own format, and open ones where some
// format opens as another one.
struct RoomNeed {
  std::int64_t own = 0;
  std::int64_t open = 0;
  std::int64_t states = 0;  // where the model has some
};

// Open blocks that are free already cost nothing. Others need slabs of the pool's own blocks. Each
// counts as pinned by none once sequences are dropped, since which ones that frees is not known
// before. Cached blocks that a request attaches pin others. So a plan that drops or admits
// sequences may lack open blocks when it is committed.
class RoomLeft {
 public:
  // Begins with all that can be had if the sequences `dropped` gave up their KV.
  explicit RoomLeft(const kv::Ledger& ledger, std::span<const SeqId> dropped = {});

  // Begins with free blocks alone, for what nothing cached shall go for.
  [[nodiscard]] static RoomLeft of_free_blocks(const kv::Ledger& ledger);

  // Returns what the KV of the next `count` tokens of a sequence needs.
  [[nodiscard]] RoomNeed need_of(SeqId id, std::int32_t count) const;
  [[nodiscard]] bool fits(const RoomNeed& need) const;
  [[nodiscard]] bool fits(SeqId id, std::int32_t count) const { return fits(need_of(id, count)); }
  // Returns the most tokens, at most `wanted`, whose KV has room.
  [[nodiscard]] std::int32_t rows_that_fit(SeqId id, std::int32_t wanted) const;
  // Gives out what is needed. Precondition: fits(need).
  void take(const RoomNeed& need);

  // Returns the blocks of the pool's own format that are left.
  [[nodiscard]] std::int64_t own() const { return own_; }
  // Returns the open blocks that need no slab.
  [[nodiscard]] std::int64_t open() const { return open_; }
  // Returns whether a request that attaches `match` can have the state that its first step needs.
  [[nodiscard]] bool has_state_behind(const kv::PrefixMatch& match) const {
    return !ledger_->points().exist() || match.idle_states < states_;
  }
  // Takes what a request attaches, which can no longer be evicted, and that state.
  void attach(const kv::PrefixMatch& match) {
    own_ -= match.evictable_blocks;
    states_ -= ledger_->points().exist() ? match.idle_states + 1 : 0;
  }

 private:
  [[nodiscard]] std::int64_t slabs_for(std::int64_t open) const;
  [[nodiscard]] std::int64_t open_within_reach() const;

  const kv::Ledger* ledger_;
  std::int64_t own_ = 0;
  std::int64_t open_ = 0;
  std::int64_t open_taken_ = 0;
  std::int64_t states_ = 0;
  bool drops_ = false;
  mutable std::optional<std::int64_t> reach_;  // open blocks of all slabs that can be lent
};

// Sets blocks aside for all that a request may compute, if half of all blocks stay free. So the KV
// of requests that run together lies in extents of its own where memory is plentiful. Nothing waits
// for it, and nothing cached goes.
void reserve_blocks(kv::Ledger& ledger, SeqId sequence, std::int64_t tokens);

}  // namespace quire::sched
