// OrderedCopies: copies that the paged pool owes, in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/kv/types.h"

namespace quire::kv {

// The paged pool must do all copies, in this order, before anything else is written.
class OrderedCopies {
 public:
  // Makes an empty list for blocks of which at most `num_blocks` move at once.
  explicit OrderedCopies(std::int32_t num_blocks) : num_blocks_(num_blocks) {}

  // Reserves memory for `count` copies beside those of blocks that move, which have their own. Call
  // it before SharedBlocks::acquire().
  void reserve(std::int32_t count) {
    const std::size_t wanted =
        copies_.size() + static_cast<std::size_t>(count) + static_cast<std::size_t>(num_blocks_);
    if (wanted > copies_.capacity()) {
      copies_.reserve(std::max(wanted, 2 * copies_.capacity()));
    }
  }
  void order(const BlockCopy& copy) { copies_.push_back(copy); }
  [[nodiscard]] bool empty() const { return copies_.empty(); }
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
