// LentSlabs: slabs that the pool's own format has lent to other formats, and the blocks of those
// formats.
//
// To each format all bytes of the pool are one array of blocks of its own size. The bytes are cut
// into slabs of `slab_blocks` blocks of the pool's own format. A slab belongs to one format, at
// first to the pool's own. A block may be used if all slabs that it touches belong to its format. A
// format borrows a slab when it has no free block, and gives it back as soon as it uses no block
// in it. With one format there are no slabs.
//
// Thread rule: one thread per object, as for the ledger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

class LentSlabs {
 public:
  // Lends nothing yet. Precondition: config.validate().ok().
  explicit LentSlabs(const LedgerConfig& config);

  // Blocks side by side.
  struct Blocks {
    BlockId first;
    std::int32_t count = 0;
  };
  struct Loan {
    std::int32_t slab = 0;
    FormatId to;
  };
  struct Plan {
    std::vector<Loan> loans;
    std::int32_t own_blocks = 0;  // of the pool's own format, in the slabs that would be lent
    BlockCounts lacking;          // what would be lacking then, in other formats
  };
  // The cost of a slab that cannot be lent.
  static constexpr std::int32_t kPinned = -1;

  [[nodiscard]] std::int32_t num_slabs() const { return static_cast<std::int32_t>(owners_.size()); }
  [[nodiscard]] FormatId owner(std::int32_t slab) const {
    return owners_[static_cast<std::size_t>(slab)];
  }
  // Returns the blocks of the pool's own format in a slab.
  [[nodiscard]] Blocks own_blocks(std::int32_t slab) const;
  // Returns the blocks of another format than the pool's own.
  [[nodiscard]] const BlockPool& pool(FormatId format) const { return pools_[format.value - 1U]; }
  [[nodiscard]] std::int64_t bytes_in_use() const;
  [[nodiscard]] std::int64_t bytes_lent() const;

  // Returns how many blocks of `format` would be free if it had every slab that can be lent.
  // `costs` has what lending each slab costs, or kPinned.
  // No more slabs count than have `bytes` together.
  [[nodiscard]] std::int32_t within_reach(FormatId format, std::span<const std::int32_t> costs,
                                          std::int64_t bytes) const;
  // Chooses slabs for so many blocks of other formats than the pool's own. Those go first that
  // cost least, then those that give the most blocks, then the last ones. Cost: O(slabs) for each.
  [[nodiscard]] Plan plan(const BlockCounts& wanted, std::span<const std::int32_t> costs,
                          std::int64_t bytes) const;
  // Gives a slab to a format. Precondition: the blocks of the pool's own format in it are withheld.
  void lend(Loan loan);
  // Makes all slabs that are lent now stay with their formats.
  void keep_loans();
  // Returns the blocks of the pool's own format in slabs that stay with another one.
  [[nodiscard]] std::int32_t blocks_kept() const;

  // Takes free blocks. Gives slabs of the format that have no used block then back to `own`.
  // Precondition: pool(format) has so many. Valid until the next call.
  [[nodiscard]] std::span<const BlockRef> acquire(FormatId format, std::int32_t count,
                                                  BlockPool& own);
  void retain(BlockRef block) { pool_of(block.format()).retain(block); }
  // Drops a reference. Gives slabs that have no used block any more back to `own`.
  void release(BlockRef block, BlockPool& own);

  // Returns kInternal if slabs, counts and pools disagree.
  [[nodiscard]] Status check(const BlockPool& own) const;

 private:
  // Returns the number of formats beside the pool's own.
  [[nodiscard]] std::uint8_t num_others() const { return static_cast<std::uint8_t>(pools_.size()); }
  struct SlabRange {
    std::int32_t first = 0, last = 0;
  };

  [[nodiscard]] BlockPool& pool_of(FormatId format) { return pools_[format.value - 1U]; }
  [[nodiscard]] std::int64_t bytes_of(std::int32_t slab) const {
    return own_blocks(slab).count * block_bytes_.front();
  }
  [[nodiscard]] SlabRange touched_by(FormatId format, std::int32_t block) const;
  // Returns the blocks that `format` can use only with this slab, where `owners` have the others.
  [[nodiscard]] Blocks gained_by(FormatId format, std::int32_t slab,
                                 std::span<const FormatId> owners) const;
  void take_back_unused(std::int32_t slab, BlockPool& own);
  [[nodiscard]] bool may_use(FormatId format, std::int32_t block) const;
  [[nodiscard]] Status check_own(const BlockPool& own) const;

  std::int64_t all_bytes_ = 0;
  std::int64_t slab_bytes_ = 0;
  std::int32_t num_own_blocks_ = 0;
  std::int32_t slab_blocks_ = 0;
  std::vector<std::int64_t> block_bytes_;  // [formats]
  std::vector<BlockPool> pools_;           // [formats - 1]
  std::vector<FormatId> owners_;           // [slabs]
  std::vector<std::int32_t> used_;         // [slabs] used blocks that touch a lent one
  std::vector<bool> kept_;                 // [slabs] stays with its format
};

}  // namespace quire::kv
