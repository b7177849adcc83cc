// LosingPoints: tells a keeper of restore points before the ledger loses them. A point is lost when
// its state gives way, and when a block of the KV before it does. Without a keeper nothing is done.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/point_keeper.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/types.h"

namespace quire::kv {

class LosingPoints {
 public:
  // Borrows both.
  LosingPoints(SharedBlocks& shared, States& states) : shared_(&shared), states_(&states) {}
  LosingPoints(const LosingPoints&) = delete;
  LosingPoints& operator=(const LosingPoints&) = delete;

  // Sets who is told from now on.
  void set_keeper(PointKeeper keeper);
  // Tells the keeper of points whose KV goes with a cached block, which is still there.
  void block_goes(BlockRef block) const;
  // Tells the keeper that the cache was cleared.
  void forget() const;

 private:
  [[nodiscard]] std::vector<BlockId> where(std::span<const BlockRef> path) const;
  [[nodiscard]] bool keep(const States::KnownPoint& point, std::span<const BlockRef> path) const;
  void state_goes(const States::KnownPoint& point) const;

  SharedBlocks* shared_;
  States* states_;
  PointKeeper keeper_;
};

}  // namespace quire::kv
