// Blocks of one run in token order, each with the reference that the run holds on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/shared_blocks.h"

namespace quire::kv {

// Owns one reference per live block and gives them back when it dies. Blocks may be given up from
// the front (a window moved on). Such a block has id -1, and its handle stays known, if there ever
// was one. Likewise the table may let window parts go from the front (window_parts.h), and goes on
// to hold the rest of these blocks. All blocks have one format, but the last one may have another.
// Move only.
class BlockTable {
 public:
  // Makes an empty table. `shared` is borrowed and must outlive the table.
  explicit BlockTable(SharedBlocks& shared) : shared_(&shared) {}
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Returns a second table over the first `count` blocks, which both tables hold from then on.
  [[nodiscard]] BlockTable clone(std::int32_t count) const;

  // Reserves memory for `count` blocks.
  void reserve(std::int32_t count);
  // Reserves memory for `count` blocks beside those that are there, so that push() needs none. May
  // grow to twice what is there.
  void reserve_more(std::int32_t count);
  // Takes over the caller's reference, on a whole block.
  void push(BlockRef block);
  // Takes over a reference without the window part. Precondition: the table holds no window part.
  void push_without_part(BlockRef block);
  // Takes over the caller's reference on `block` and gives back the one on what was there.
  void replace(std::int32_t index, BlockRef block);
  // Gives back all but the first `count` blocks, the last one first.
  void truncate(std::int32_t count);
  // Gives back blocks until the first `count` are gone. They keep their places.
  void give_up_front(std::int32_t count);
  // Lets window parts go until those of the first `count` blocks are. `at_point(i)`: a later
  // request may go on behind block i.
  template <class AtPoint>
  void let_parts_go(std::int32_t count, const AtPoint& at_point) {
    for (; num_without_part_ < count; ++num_without_part_) {
      shared_->parts().let_go(ref(num_without_part_).id, at_point(num_without_part_));
    }
  }
  // Holds the window parts from block `first` on again. Precondition: they are there.
  void take_parts_up(std::int32_t first);
  // Adds places for `count` blocks that were given up elsewhere. No handle finds them.
  // Precondition: the table is empty.
  void begin_behind(std::int32_t count);

  [[nodiscard]] std::span<const BlockId> ids() const { return ids_; }
  // Returns the handle of a block. The handle of a block that was given up may be stale.
  [[nodiscard]] BlockRef ref(std::int32_t index) const {
    return refs_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::span<const BlockRef> live() const;
  // Return the format of the blocks but the last, and of the last one; the pool's own when there is
  // none. A table of one block has that block's format.
  [[nodiscard]] FormatId format() const {
    return refs_.empty() ? kOwnFormat : refs_.front().format();
  }
  [[nodiscard]] FormatId last_format() const {
    return refs_.empty() ? kOwnFormat : refs_.back().format();
  }
  // Returns the bytes of its blocks. Precondition: none was given up.
  [[nodiscard]] std::int64_t num_bytes() const;
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ids_.size()); }
  [[nodiscard]] std::int32_t num_given_up() const { return num_given_up_; }
  [[nodiscard]] std::int32_t num_live() const { return size() - num_given_up_; }
  // Returns how many leading blocks it holds without their window parts.
  [[nodiscard]] std::int32_t num_without_part() const { return num_without_part_; }

 private:
  [[nodiscard]] SharedBlocks::Holds held_of(std::int32_t index) const {
    return index < num_without_part_ ? SharedBlocks::Holds::kFullPart : SharedBlocks::Holds::kWhole;
  }

  SharedBlocks* shared_;
  std::vector<BlockId> ids_;    // [blocks] as attention sees them
  std::vector<BlockRef> refs_;  // [blocks]
  std::int32_t num_given_up_ = 0;
  std::int32_t num_without_part_ = 0;
};

}  // namespace quire::kv
