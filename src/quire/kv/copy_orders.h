// Copies between blocks that the paged pool must make, in their order, before anything else is
// written.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"

namespace quire::kv {

class CopyOrders {
 public:
  // Makes an empty list for a pool of so many blocks, all of which may have to move at once.
  explicit CopyOrders(std::int32_t num_blocks) : num_blocks_(num_blocks) {}

  // Reserves memory for `count` copies beside those of cached blocks that move. Call it before
  // blocks are acquired.
  void reserve_more(std::int32_t count) {
    const std::size_t wanted =
        copies_.size() + static_cast<std::size_t>(count) + static_cast<std::size_t>(num_blocks_);
    if (wanted > copies_.capacity()) {
      copies_.reserve(std::max(wanted, 2 * copies_.capacity()));
    }
  }
  void add(const BlockCopy& copy) { copies_.push_back(copy); }
  [[nodiscard]] bool empty() const { return copies_.empty(); }
  // Returns the block that has the bytes of a full block of the pool's own format now.
  [[nodiscard]] BlockId source_of(BlockId block) const {
    for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
      block = copy->to == block && copy->format == kOwnFormat ? copy->from : block;
    }
    return block;
  }
  // Returns the copies since the last call.
  [[nodiscard]] std::vector<BlockCopy> take() {
    std::vector<BlockCopy> taken = copies_;
    copies_.clear();  // keeps its memory
    return taken;
  }

 private:
  std::int32_t num_blocks_;
  std::vector<BlockCopy> copies_;
};

}  // namespace quire::kv
