#include "quire/kv/reserved_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"

namespace quire::kv {

std::int32_t ReservedBlocks::size(Holder holder) const {
  const auto found = blocks_.find(holder);
  return found == blocks_.end() ? 0 : static_cast<std::int32_t>(found->second.size());
}

bool ReservedBlocks::set_aside(Holder holder, std::int32_t count, std::int32_t most,
                               BlockId after) {
  const std::int32_t more = count - size(holder);
  if (more > pool_.num_free()) {
    return false;
  }
  std::vector<BlockRef>& held = blocks_[holder];
  held.reserve(static_cast<std::size_t>(most));
  for (std::int32_t i = more; i < 0; ++i) {
    free_last(held);
  }
  if (more > 0) {
    const std::span<const BlockRef> taken =
        pool_.acquire(more, held.empty() ? after : held.front().id);
    held.insert(held.begin(), taken.rbegin(), taken.rend());
    size_ += more;
  }
  return true;
}

void ReservedBlocks::set_aside_again(Holder holder, BlockRef block) {
  std::vector<BlockRef>& held = blocks_.at(holder);
  pool_.retain(block);
  held.push_back(block);
  ++size_;
}

BlockRef ReservedBlocks::take(Holder holder) {
  std::vector<BlockRef>& held = blocks_.at(holder);
  QUIRE_CHECK(!held.empty(), "no block is set aside");
  const BlockRef block = held.back();
  held.pop_back();
  --size_;
  return block;
}

void ReservedBlocks::give_back(Holder holder) {
  const auto found = blocks_.find(holder);
  if (found == blocks_.end()) {
    return;
  }
  while (!found->second.empty()) {
    free_last(found->second);
  }
  blocks_.erase(found);
}

void ReservedBlocks::give_one_back() {
  // The last holder gives where several have most, so that the order of the map decides nothing.
  const auto most = std::ranges::max_element(blocks_, [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                              : a.first < b.first;
  });
  QUIRE_CHECK(size_ > 0, "no block is set aside");
  free_last(most->second);
}

void ReservedBlocks::give_back_within(BlockId first, std::int32_t count) {
  for (auto& [holder, held] : blocks_) {
    size_ -= static_cast<std::int32_t>(std::erase_if(held, [&](BlockRef block) {
      const std::int32_t id = block.id.value;
      const bool within = id >= first.value && id < first.value + count;
      if (within) {
        pool_.release(block);
      }
      return within;
    }));
  }
}

void ReservedBlocks::free_last(std::vector<BlockRef>& held) {
  pool_.release(held.front());
  held.erase(held.begin());
  --size_;
}

}  // namespace quire::kv
