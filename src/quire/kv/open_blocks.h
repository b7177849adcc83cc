// Blocks that hold rows of a run as they were computed, until their block is full and stored in the
// run's format (BlockFormat::open).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/kv/block_pool.h"
#include "quire/kv/shared_blocks.h"

namespace quire::kv {

// A block in the format of open blocks: it holds the rows of block `index` of its run.
struct OpenBlock {
  std::int32_t index = 0;
  BlockRef block;
};

// Owns one reference for each block and gives them back when it dies. A run has two of them while
// a step fills one and begins another, otherwise one or none. Move only.
class OpenBlocks {
 public:
  // Makes an empty list. `shared` is borrowed and must outlive it.
  explicit OpenBlocks(SharedBlocks& shared) : shared_(&shared) {}
  ~OpenBlocks() { release_from(0); }
  OpenBlocks(OpenBlocks&& other) noexcept;
  OpenBlocks& operator=(OpenBlocks&& other) noexcept;
  OpenBlocks(const OpenBlocks&) = delete;
  OpenBlocks& operator=(const OpenBlocks&) = delete;

  [[nodiscard]] std::span<const OpenBlock> all() const { return blocks_; }
  // Returns the block that holds rows of block `index` of the run; nullptr if there is none.
  [[nodiscard]] const OpenBlock* find(std::int32_t index) const;

  // Reserves memory for `count` more blocks, so that push() needs none.
  void reserve_more(std::int32_t count);
  // Takes over the caller's reference. Precondition: no block of this index is there.
  void push(OpenBlock block);
  // Takes over the caller's reference and gives back the one on what was there. Precondition: a
  // block of this index is there.
  void replace(OpenBlock block);
  // Give back the blocks whose index is below `index`, or not below it.
  void release_before(std::int32_t index);
  void release_from(std::int32_t index);

 private:
  SharedBlocks* shared_;
  std::vector<OpenBlock> blocks_;  // ascending by index
};

}  // namespace quire::kv
