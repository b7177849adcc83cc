#include "quire/kv/block_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

// Handle of a block that never was here. Not the default handle. That one is the root of the prefix
// index, and what stands behind this one must never be found as the beginning of a prompt.
constexpr BlockRef kNoRef{.id = {}, .generation = 1};

}  // namespace

BlockTable::~BlockTable() { truncate(0); }

BlockTable::BlockTable(BlockTable&& other) noexcept
    : shared_(other.shared_),
      ids_(std::exchange(other.ids_, {})),
      refs_(std::exchange(other.refs_, {})),
      num_given_up_(std::exchange(other.num_given_up_, 0)),
      num_without_part_(std::exchange(other.num_without_part_, 0)) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(shared_, other.shared_);
  std::swap(ids_, other.ids_);
  std::swap(refs_, other.refs_);
  std::swap(num_given_up_, other.num_given_up_);
  std::swap(num_without_part_, other.num_without_part_);
  return *this;
}

BlockTable BlockTable::clone(std::int32_t count) const {
  BlockTable copy(*shared_);
  copy.reserve(count);
  copy.ids_.assign(ids_.begin(), ids_.begin() + count);
  copy.refs_.assign(refs_.begin(), refs_.begin() + count);
  copy.num_given_up_ = std::min(num_given_up_, count);
  copy.num_without_part_ = std::min(num_without_part_, count);
  for (std::int32_t i = copy.num_given_up_; i < count; ++i) {
    shared_->retain(ref(i), held_of(i));
  }
  return copy;
}

void BlockTable::reserve(std::int32_t count) {
  ids_.reserve(static_cast<std::size_t>(count));
  refs_.reserve(static_cast<std::size_t>(count));
}

void BlockTable::reserve_more(std::int32_t count) {
  const std::size_t wanted = ids_.size() + static_cast<std::size_t>(count);
  if (wanted > ids_.capacity() || wanted > refs_.capacity()) {
    reserve(static_cast<std::int32_t>(std::max(wanted, 2 * ids_.size())));
  }
}

void BlockTable::push(BlockRef block) {
  ids_.push_back(block.id);
  refs_.push_back(block);
}

void BlockTable::replace(std::int32_t index, BlockRef block) {
  QUIRE_CHECK(index >= num_given_up_ && index < size(), "a block that is not held was replaced");
  shared_->release(ref(index), held_of(index));
  ids_[static_cast<std::size_t>(index)] = block.id;
  refs_[static_cast<std::size_t>(index)] = block;
}

void BlockTable::truncate(std::int32_t count) {
  while (size() > count) {
    if (num_live() > 0) {
      shared_->release(refs_.back(), held_of(size() - 1));
    } else {
      --num_given_up_;
    }
    num_without_part_ = std::min(num_without_part_, size() - 1);
    ids_.pop_back();
    refs_.pop_back();
  }
}

void BlockTable::push_without_part(BlockRef block) {
  QUIRE_CHECK(num_without_part_ == size(), "a window part is held before one that is not");
  push(block);
  ++num_without_part_;
}

void BlockTable::take_parts_up(std::int32_t first) {
  while (num_without_part_ > first) {
    shared_->parts().hold(ref(--num_without_part_).id);
  }
}

void BlockTable::give_up_front(std::int32_t count) {
  for (; num_given_up_ < count; ++num_given_up_) {
    shared_->release(ref(num_given_up_));
    ids_[static_cast<std::size_t>(num_given_up_)] = BlockId{};
  }
}

void BlockTable::begin_behind(std::int32_t count) {
  QUIRE_CHECK(size() == 0, "blocks that were given up stand before all others");
  reserve(count);
  ids_.resize(static_cast<std::size_t>(count));
  refs_.assign(static_cast<std::size_t>(count), kNoRef);
  num_given_up_ = count;
}

std::int64_t BlockTable::num_bytes() const {
  QUIRE_CHECK(num_given_up_ == 0, "blocks that were given up have no bytes");
  if (size() == 0) {
    return 0;
  }
  const LedgerConfig& config = shared_->config();
  return (size() - 1) * config.block_bytes(format()) + config.block_bytes(last_format());
}

std::span<const BlockRef> BlockTable::live() const {
  return std::span(refs_).subspan(static_cast<std::size_t>(num_given_up_));
}

}  // namespace quire::kv
