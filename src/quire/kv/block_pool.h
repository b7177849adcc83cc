// BlockPool: a fixed pool of KV block ids with reference counts and generations. It knows no tensor
// and no device.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/result.h"

namespace quire::kv {

// A block as it was when it was handed out. The generation changes whenever the block becomes free.
// So a handle that outlived its reference is noticed and never means another tenant's block. Its
// upper bits are the format.
struct BlockRef {
  static constexpr int kCountBits = 29;  // below the format
  BlockId id;
  std::uint32_t generation = 0;
  [[nodiscard]] FormatId format() const {
    return {static_cast<std::uint8_t>(generation >> kCountBits)};
  }
  friend bool operator==(BlockRef, BlockRef) = default;
};
static_assert(kMaxFormats <= 1U << (32 - BlockRef::kCountBits));

class BlockPool {
 public:
  // Makes a pool of free blocks 0 to num_blocks - 1.
  explicit BlockPool(std::int32_t num_blocks);
  // Makes a pool of blocks in another format than the pool's own. All of them are withheld.
  BlockPool(std::int32_t num_blocks, FormatId format);

  // Takes `count` blocks with one reference each. Consecutive ids are consecutive bytes in the
  // paged pool, which are read faster. So the blocks continue after `after` (-1: nothing to
  // continue) where they can, and the others lie in the largest free extents. Inside a larger
  // extent a few blocks stay free for the neighbour before it, which may grow. More would spread
  // few tokens over the whole pool. Precondition: count <= num_free(). The result is valid until
  // the next call. Cost: O(count), plus O(num_blocks / 64 + extents * log extents) unless `after`
  // is continued.
  [[nodiscard]] std::span<const BlockRef> acquire(std::int32_t count, BlockId after);

  // Takes a block of the smallest free extent, but none of the `count` blocks from `first` on.
  // Precondition: such a block exists. Cost: O(num_blocks / 64 + extents).
  [[nodiscard]] BlockRef acquire_outside(BlockId first, std::int32_t count);

  // Take blocks away from acquire(), since their bytes are another format's, and give them back.
  // Precondition, always checked: they are free, or they were withheld.
  void withhold(BlockId first, std::int32_t count);
  void offer(BlockId first, std::int32_t count);

  // Adds a reference. Precondition, always checked: is_current(block).
  void retain(BlockRef block);
  // Drops a reference. Returns true if it was the last one and the block is free now. Precondition,
  // always checked: is_current(block).
  bool release(BlockRef block);

  // Returns true if the block has not been freed since `block` was handed out.
  [[nodiscard]] bool is_current(BlockRef block) const;
  // Returns a handle to the block as it is now.
  [[nodiscard]] BlockRef current(BlockId id) const;
  [[nodiscard]] std::int32_t references(BlockId id) const;
  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(uses_.size()); }
  [[nodiscard]] std::int32_t num_free() const { return num_free_; }
  [[nodiscard]] std::int32_t num_withheld() const { return num_withheld_; }
  // Returns how many blocks were handed out since birth.
  [[nodiscard]] std::int64_t num_acquired() const { return num_acquired_; }
  // Returns the number of blocks with a reference.
  [[nodiscard]] std::int32_t num_taken() const { return num_blocks() - num_free_ - num_withheld_; }
  [[nodiscard]] bool is_free(BlockId id) const { return is_free(id.value); }
  // Returns the number of free blocks that follow `after` directly; 0 for -1.
  [[nodiscard]] std::int32_t num_free_behind(BlockId after) const;
  // Returns the length of the largest free extent. Cost: O(num_blocks / 64 + extents).
  [[nodiscard]] std::int32_t largest_extent() const;

  // Returns kInternal if the free map, the counts and the reference counts disagree.
  [[nodiscard]] Status check() const;

 private:
  struct BlockUse {
    std::int32_t references = 0;
    std::uint32_t generation = 0;
  };
  struct Extent {
    std::int32_t first = 0;
    std::int32_t length = 0;
  };

  [[nodiscard]] bool is_free(std::int32_t index) const;
  [[nodiscard]] std::int32_t find_next(std::int32_t from, bool free) const;
  // Returns the first extent that begins at or after `from`; length 0 if there is none.
  [[nodiscard]] Extent next_free_extent(std::int32_t from) const;
  void take_fragments(std::int32_t count);
  void take(Extent extent);

  std::vector<BlockUse> uses_;            // [num_blocks]
  std::vector<std::uint64_t> free_bits_;  // bit i: block i is free; bits behind the last are 0
  std::int32_t num_free_ = 0;
  std::int32_t num_withheld_ = 0;  // neither free nor referred to
  std::int64_t num_acquired_ = 0;
  FormatId format_;
  std::vector<BlockRef> taken_;  // by the last acquire
  std::vector<Extent> extents_;  // scratch of take_fragments
};

}  // namespace quire::kv
