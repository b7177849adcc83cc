#include "quire/kv/block_pool.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/format.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

constexpr std::int32_t kWordBits = 64;
constexpr std::int32_t kGrowthBlocks = 4;

std::size_t word_of(std::int32_t index) { return static_cast<std::size_t>(index / kWordBits); }
std::uint64_t bit_of(std::int32_t index) { return std::uint64_t{1} << (index % kWordBits); }

}  // namespace

BlockPool::BlockPool(std::int32_t num_blocks)
    : uses_(static_cast<std::size_t>(num_blocks)),
      free_bits_(word_of(num_blocks + kWordBits - 1)),
      num_free_(num_blocks) {
  taken_.reserve(static_cast<std::size_t>(num_blocks));  // acquire() asks for no memory
  extents_.reserve((static_cast<std::size_t>(num_blocks) / 2) + 1);
  for (std::int32_t i = 0; i < num_blocks; ++i) {
    free_bits_[word_of(i)] |= bit_of(i);
  }
}

BlockPool::BlockPool(std::int32_t num_blocks, FormatId format)
    : uses_(static_cast<std::size_t>(num_blocks)),
      free_bits_(word_of(num_blocks + kWordBits - 1)),
      num_withheld_(num_blocks),
      format_(format) {
  for (BlockUse& use : uses_) {
    use.generation = std::uint32_t{format.value} << BlockRef::kCountBits;
  }
  taken_.reserve(static_cast<std::size_t>(num_blocks));
  extents_.reserve((static_cast<std::size_t>(num_blocks) / 2) + 1);
}

void BlockPool::withhold(BlockId first, std::int32_t count) {
  for (std::int32_t i = first.value; i < first.value + count; ++i) {
    QUIRE_CHECK(is_free(i), "a block that is not free was withheld");
    free_bits_[word_of(i)] &= ~bit_of(i);
  }
  num_free_ -= count;
  num_withheld_ += count;
}

void BlockPool::offer(BlockId first, std::int32_t count) {
  for (std::int32_t i = first.value; i < first.value + count; ++i) {
    QUIRE_CHECK(!is_free(i) && references(BlockId{i}) == 0, "a block was offered twice");
    free_bits_[word_of(i)] |= bit_of(i);
  }
  num_free_ += count;
  num_withheld_ -= count;
}

std::span<const BlockRef> BlockPool::acquire(std::int32_t count, BlockId after) {
  QUIRE_CHECK(count >= 0 && count <= num_free_, "more blocks asked for than are free");
  taken_.clear();
  std::int32_t rest = count;
  if (rest > 0) {
    const std::int32_t length = std::min(rest, num_free_behind(after));
    take({after.value + 1, length});
    rest -= length;
  }
  if (rest == 0) {
    return taken_;
  }
  Extent largest;
  for (Extent next = next_free_extent(0); next.length > 0;
       next = next_free_extent(next.first + next.length)) {
    largest = next.length > largest.length ? next : largest;
  }
  if (largest.length < rest) {
    take_fragments(rest);
    return taken_;
  }
  const bool neighbour_grows = largest.first != 0 && format_ == kOwnFormat;
  const std::int32_t gap =
      neighbour_grows ? std::min(kGrowthBlocks, (largest.length - rest) / 2) : 0;
  take({largest.first + gap, rest});
  return taken_;
}

BlockRef BlockPool::acquire_outside(BlockId first, std::int32_t count) {
  const std::int32_t end = first.value + count;
  Extent smallest{.length = num_blocks() + 1};
  const auto hear = [&](std::int32_t begin, std::int32_t length) {
    if (length > 0 && length < smallest.length) {
      smallest = {.first = begin, .length = length};
    }
  };
  for (Extent next = next_free_extent(0); next.length > 0;
       next = next_free_extent(next.first + next.length)) {
    const std::int32_t next_end = next.first + next.length;
    const std::int32_t behind = std::max(next.first, end);
    hear(next.first, std::min(next_end, first.value) - next.first);
    hear(behind, next_end - behind);
  }
  QUIRE_CHECK(smallest.length <= num_blocks(), "no block is free outside of these");
  taken_.clear();
  take({.first = smallest.first, .length = 1});
  return taken_.front();
}

// Takes `count` blocks from the largest extents on.
void BlockPool::take_fragments(std::int32_t count) {
  extents_.clear();
  for (Extent next = next_free_extent(0); next.length > 0;
       next = next_free_extent(next.first + next.length)) {
    extents_.push_back(next);
  }
  std::ranges::stable_sort(extents_, std::greater(), &Extent::length);
  for (const Extent extent : extents_) {
    const std::int32_t length = std::min(count, extent.length);
    take({extent.first, length});
    count -= length;
  }
}

void BlockPool::take(Extent extent) {
  for (std::int32_t i = extent.first; i < extent.first + extent.length; ++i) {
    BlockUse& use = uses_[static_cast<std::size_t>(i)];
    use.references = 1;
    free_bits_[word_of(i)] &= ~bit_of(i);
    taken_.push_back({BlockId{i}, use.generation});
  }
  num_free_ -= extent.length;
  num_acquired_ += extent.length;
}

void BlockPool::retain(BlockRef block) {
  QUIRE_CHECK(is_current(block), "a stale block handle was retained");
  ++uses_[static_cast<std::size_t>(block.id.value)].references;
}

bool BlockPool::release(BlockRef block) {
  QUIRE_CHECK(is_current(block), "a block was released twice or through a stale handle");
  BlockUse& use = uses_[static_cast<std::size_t>(block.id.value)];
  if (--use.references > 0) {
    return false;
  }
  constexpr std::uint32_t kCount = (std::uint32_t{1} << BlockRef::kCountBits) - 1;
  use.generation = (use.generation & ~kCount) | ((use.generation + 1) & kCount);
  free_bits_[word_of(block.id.value)] |= bit_of(block.id.value);
  ++num_free_;
  return true;
}

bool BlockPool::is_current(BlockRef block) const {
  if (block.id.value < 0 || block.id.value >= num_blocks()) {
    return false;
  }
  const BlockUse& use = uses_[static_cast<std::size_t>(block.id.value)];
  return use.references > 0 && use.generation == block.generation;
}

BlockRef BlockPool::current(BlockId id) const {
  return {.id = id, .generation = uses_[static_cast<std::size_t>(id.value)].generation};
}

std::int32_t BlockPool::references(BlockId id) const {
  return uses_[static_cast<std::size_t>(id.value)].references;
}

bool BlockPool::is_free(std::int32_t index) const {
  return (free_bits_[word_of(index)] & bit_of(index)) != 0;
}

// Returns the first block at or after `from` that is free (or, without `free`, in use), or
// num_blocks().
std::int32_t BlockPool::find_next(std::int32_t from, bool free) const {
  std::uint64_t mask = ~std::uint64_t{0} << (from % kWordBits);
  for (std::size_t word = word_of(from); word < free_bits_.size(); ++word) {
    const std::uint64_t bits = (free ? free_bits_[word] : ~free_bits_[word]) & mask;
    if (bits != 0) {
      const auto index = static_cast<std::int32_t>(word) * kWordBits + std::countr_zero(bits);
      return std::min(index, num_blocks());
    }
    mask = ~std::uint64_t{0};
  }
  return num_blocks();
}

std::int32_t BlockPool::num_free_behind(BlockId after) const {
  const std::int32_t first = after.value + 1;
  return after.value < 0 || first == num_blocks() ? 0 : find_next(first, false) - first;
}

std::int32_t BlockPool::largest_extent() const {
  std::int32_t largest = 0;
  for (Extent next = next_free_extent(0); next.length > 0;
       next = next_free_extent(next.first + next.length)) {
    largest = std::max(largest, next.length);
  }
  return largest;
}

BlockPool::Extent BlockPool::next_free_extent(std::int32_t from) const {
  const std::int32_t first = find_next(from, true);
  return {.first = first, .length = find_next(first, false) - first};
}

Status BlockPool::check() const {
  std::int32_t counted = 0;
  std::int32_t withheld = 0;
  for (std::int32_t i = 0; i < num_blocks(); ++i) {
    const std::int32_t references = uses_[static_cast<std::size_t>(i)].references;
    if (references < 0 || (references > 0 && is_free(i))) {
      return {ErrorCode::kInternal, base::str_cat("block ", i, " has ", references,
                                                  " references but is in the free map")};
    }
    counted += is_free(i) ? 1 : 0;
    withheld += references == 0 && !is_free(i) ? 1 : 0;
  }
  if (counted != num_free_ || withheld != num_withheld_) {
    return {ErrorCode::kInternal,
            base::str_cat("the free map has ", counted, " blocks, the free count is ", num_free_,
                          "; ", withheld, " blocks are withheld, counted are ", num_withheld_)};
  }
  return {};
}

}  // namespace quire::kv
