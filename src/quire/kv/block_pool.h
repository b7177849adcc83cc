// Fixed pool of KV block ids with reference counts and generations. Host only; knows no tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/result.h"

namespace quire::kv {

// A block as it was when somebody got it. The generation changes whenever the block becomes free,
// so a handle that outlived its reference is noticed and never means another tenant's block.
struct BlockRef {
  BlockId id;
  std::uint32_t generation = 0;
  friend bool operator==(BlockRef, BlockRef) = default;
};

class BlockPool {
 public:
  explicit BlockPool(std::int32_t num_blocks);

  // Takes `count` blocks with one reference each. Consecutive ids are consecutive bytes on the
  // shelves and about 1.5 times faster to read, so it continues after `after` (-1: nothing to
  // continue) where it can, and puts the rest into the largest free extents; inside a larger extent
  // it leaves a few blocks to the neighbour before it, which may grow. More room would spread a
  // few tokens over the whole pool, and the first touch of a page is slow.
  // Precondition: count <= num_free(). Cost: O(count), and O(num_blocks / 64 + extents * log
  // extents) when `after` cannot be continued. Valid until the next call, which uses the memory
  // again.
  [[nodiscard]] std::span<const BlockRef> acquire(std::int32_t count, BlockId after);

  // Takes a block of the smallest free extent, of those blocks that are none of the `count`
  // blocks from `first` on. Precondition: there is one. O(num_blocks / 64 + extents).
  [[nodiscard]] BlockRef acquire_outside(BlockId first, std::int32_t count);

  // Adds a reference. Precondition (always checked, as for release): is_current(block).
  void retain(BlockRef block);
  // Drops a reference; true when it was the last one and the block is free now.
  bool release(BlockRef block);

  // Whether the block has not been freed since `block` was handed out.
  [[nodiscard]] bool is_current(BlockRef block) const;
  // The block as it is now.
  [[nodiscard]] BlockRef current(BlockId id) const;
  [[nodiscard]] std::int32_t references(BlockId id) const;
  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(slots_.size()); }
  [[nodiscard]] std::int32_t num_free() const { return num_free_; }
  // Free blocks that follow `after` directly; of -1: none.
  [[nodiscard]] std::int32_t num_free_behind(BlockId after) const;
  // Length of the largest free extent. O(num_blocks / 64 + extents).
  [[nodiscard]] std::int32_t largest_extent() const;

  // kInternal when the free map, the free count and the reference counts disagree.
  [[nodiscard]] Status check() const;

 private:
  struct Slot {
    std::int32_t references = 0;
    std::uint32_t generation = 0;
  };
  struct Extent {
    std::int32_t first = 0;
    std::int32_t length = 0;
  };

  [[nodiscard]] bool is_free(std::int32_t index) const;
  [[nodiscard]] std::int32_t find_next(std::int32_t from, bool free) const;
  // The first one that begins at or after `from`; of length 0 when there is none.
  [[nodiscard]] Extent next_free_extent(std::int32_t from) const;
  void take_fragments(std::int32_t count);
  void take(Extent extent);

  std::vector<Slot> slots_;               // [num_blocks]
  std::vector<std::uint64_t> free_bits_;  // bit i: block i is free; bits behind the last are 0
  std::int32_t num_free_ = 0;
  std::vector<BlockRef> taken_;  // by the last acquire
  std::vector<Extent> extents_;  // of take_fragments
};

}  // namespace quire::kv
