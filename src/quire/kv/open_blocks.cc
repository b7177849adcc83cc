#include "quire/kv/open_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "quire/base/check.h"
#include "quire/kv/shared_blocks.h"

namespace quire::kv {

OpenBlocks::OpenBlocks(OpenBlocks&& other) noexcept
    : shared_(other.shared_), blocks_(std::exchange(other.blocks_, {})) {}

OpenBlocks& OpenBlocks::operator=(OpenBlocks&& other) noexcept {
  std::swap(shared_, other.shared_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

const OpenBlock* OpenBlocks::find(std::int32_t index) const {
  const auto found = std::ranges::find(blocks_, index, &OpenBlock::index);
  return found == blocks_.end() ? nullptr : &*found;
}

void OpenBlocks::reserve_more(std::int32_t count) {
  blocks_.reserve(blocks_.size() + static_cast<std::size_t>(count));
}

void OpenBlocks::push(OpenBlock block) {
  const auto place = std::ranges::lower_bound(blocks_, block.index, {}, &OpenBlock::index);
  QUIRE_CHECK(place == blocks_.end() || place->index != block.index, "a block was opened twice");
  blocks_.insert(place, block);
}

void OpenBlocks::replace(OpenBlock block) {
  const auto found = std::ranges::find(blocks_, block.index, &OpenBlock::index);
  QUIRE_CHECK(found != blocks_.end(), "an open block that is not held was replaced");
  shared_->release(found->block);
  *found = block;
}

void OpenBlocks::release_before(std::int32_t index) {
  const auto end = std::ranges::lower_bound(blocks_, index, {}, &OpenBlock::index);
  std::for_each(blocks_.begin(), end, [&](const OpenBlock& open) { shared_->release(open.block); });
  blocks_.erase(blocks_.begin(), end);
}

void OpenBlocks::release_from(std::int32_t index) {
  for (; !blocks_.empty() && blocks_.back().index >= index; blocks_.pop_back()) {
    shared_->release(blocks_.back().block);
  }
}

}  // namespace quire::kv
