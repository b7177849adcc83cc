// Blocks that are set aside for runs that will grow. They are taken from the pool, but no table
// shows them and nobody's KV lies in them. Whoever lacks blocks gets them before anything cached
// goes, so setting blocks aside takes nothing from anybody.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"

namespace quire::kv {

class ReservedBlocks {
 public:
  // Names the run that blocks are set aside for.
  using Holder = std::uint64_t;
  static constexpr Holder kNobody = 0;

  // Borrows `pool`, of the ledger's own format.
  explicit ReservedBlocks(BlockPool& pool) : pool_(pool) {}

  // Return the number of blocks that are set aside, for all or for one.
  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] std::int32_t size(Holder holder) const;

  // Sets free blocks aside until `count` are there for the holder, behind `after` where they can
  // be, or gives back those that are too many. False where too few are free; nothing changes then.
  // The holder will never have more than `most`.
  [[nodiscard]] bool set_aside(Holder holder, std::int32_t count, std::int32_t most, BlockId after);
  // Sets a block that the holder alone holds aside again, before its others, with another
  // reference. Allocates nothing. Precondition: set_aside() has made the holder known.
  void set_aside_again(Holder holder, BlockRef block);
  // Takes the first block of a holder, with its reference. Precondition: there is one.
  [[nodiscard]] BlockRef take(Holder holder);

  // Frees all blocks of the holder and forgets it. Allocates nothing.
  void give_back(Holder holder);
  // Frees the last block of whoever has most. Precondition: size() > 0. Cost: O(holders), plus
  // O(blocks of that one).
  void give_one_back();
  // Frees the blocks with ids in [first, first + count).
  void give_back_within(BlockId first, std::int32_t count);

  // Calls visit(holder, block) for each block.
  template <class Visit>
  void visit(const Visit& visit) const {
    for (const auto& [holder, blocks] : blocks_) {
      for (const BlockRef block : blocks) {
        visit(holder, block);
      }
    }
  }

 private:
  void free_last(std::vector<BlockRef>& held);

  BlockPool& pool_;
  std::unordered_map<Holder, std::vector<BlockRef>> blocks_;  // of each the last block first
  std::int32_t size_ = 0;
};

}  // namespace quire::kv
