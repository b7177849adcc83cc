// All blocks of a ledger: the pool and the prefix index together. The one place where references
// are taken, given back and evicted.
//
// A block is free (no reference), cached (the index's reference alone) or in use (somebody else
// holds it as well). A block in another format than the pool's own is never cached. It lies in
// slabs that the pool's own format has lent (lent_slabs.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/copy_orders.h"
#include "quire/kv/eviction_order.h"
#include "quire/kv/format.h"
#include "quire/kv/lent_slabs.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/reserved_blocks.h"
#include "quire/kv/types.h"
#include "quire/kv/window_parts.h"
#include "quire/types.h"

namespace quire::kv {

class SharedBlocks {
 public:
  // A function that hears of a cached block before it makes room for others.
  using OnEviction = std::function<void(BlockRef)>;
  explicit SharedBlocks(const LedgerConfig& config, OnEviction on_eviction = {});

  // Which of a block's parts a holder needs.
  enum class Holds : std::uint8_t { kWhole, kFullPart };

  [[nodiscard]] const LedgerConfig& config() const { return config_; }
  [[nodiscard]] const BlockPool& pool(FormatId format = {}) const {
    return format == kOwnFormat ? pool_ : lent_.pool(format);
  }
  [[nodiscard]] const LentSlabs& lent() const { return lent_; }
  [[nodiscard]] const PrefixIndex& index() const { return index_; }
  // Returns the window parts. Whoever holds a block may hold its part and let it go.
  [[nodiscard]] WindowParts& parts() { return parts_; }
  [[nodiscard]] const WindowParts& parts() const { return parts_; }

  // Returns the free plus the cached blocks of a format: what acquire can hand out. Blocks that are
  // set aside are free. Counts all slabs that can be lent to another format than the pool's own.
  // With window parts the bytes that are left may be for fewer blocks than there are ids.
  [[nodiscard]] std::int32_t num_available(FormatId format = {}) const;
  // Returns what is lacking for so many blocks of each format at once.
  [[nodiscard]] BlockCounts lacking(const BlockCounts& wanted) const;
  // Returns how many cached blocks acquire has freed since birth, in all or for one reason.
  [[nodiscard]] std::int64_t num_evictions(std::optional<PrefixMiss::Why> why = {}) const;
  // Returns the eviction order, which has the hints of sessions and the time.
  [[nodiscard]] EvictionOrder& order() { return index_.order(); }

  // Takes `count` blocks: those that are set aside for `holder` first. Where too few are free,
  // takes those that are set aside for others, then evicts cached ones in their order. Blocks lie
  // behind `after` where they can be, else in one extent, from 2 * extent_blocks on also in several
  // of at least extent_blocks. Cached blocks that are in the way are moved to where else it is
  // free, which orders copies. A single block never makes another one move. Without their window
  // parts, none is for a holder. Valid until the next call. Precondition: has_room(). Cost: as
  // BlockPool::acquire; where no extent is large enough O(num_blocks) for each that is made, plus
  // as acquire for each block moved.
  [[nodiscard]] std::span<const BlockRef> acquire(
      std::int32_t count, BlockId after, ReservedBlocks::Holder holder = ReservedBlocks::kNobody,
      Holds what = Holds::kWhole);
  [[nodiscard]] ReservedBlocks& reserved() { return reserved_; }
  [[nodiscard]] const ReservedBlocks& reserved() const { return reserved_; }

  // Lends slabs, so that acquire() can hand out so many blocks of each format, those of the pool's
  // own format too. Evicts and moves cached blocks for them; with a window it moves none.
  // Precondition: nothing is lacking().
  void lend_for(const BlockCounts& wanted);
  // Takes blocks of a format after lend_for(). Those of the pool's own format continue nothing.
  [[nodiscard]] std::span<const BlockRef> acquire(FormatId format, std::int32_t count);

  // Returns the copies that were ordered, of which acquire() and lend_for() order some.
  [[nodiscard]] CopyOrders& copies() { return copies_; }
  // Returns how many cached blocks were moved since birth.
  [[nodiscard]] std::int64_t num_moved() const { return num_moved_; }

  void retain(BlockRef block, Holds what = Holds::kWhole);
  // Retains the block for a request of `session`, which found it in the index.
  void adopt(BlockRef block, SessionRef session, Holds what = Holds::kWhole);
  void release(BlockRef block, Holds what = Holds::kWhole);

  // Returns whether somebody else (the index counts) holds the block too, so that it may not be
  // written.
  [[nodiscard]] bool is_shared(BlockRef block) const {
    return pool(block.format()).references(block.id) > 1;
  }

  // Returns PrefixIndex::root.
  [[nodiscard]] BlockRef root(std::string_view salt) { return index_.root(salt); }
  // Makes `block`, full of `tokens` and held by the caller, findable behind `parent`, unless these
  // tokens are known there. Returns the block that is found now. Precondition: `parent` is known.
  [[nodiscard]] BlockRef publish(BlockRef parent, BlockRef block, std::span<const TokenId> tokens,
                                 SessionRef session = {});

  // Takes blocks of a path, in order, from the index, from its end on. Stops at one that somebody
  // uses, or behind which something else is known.
  void forget(std::span<const BlockRef> path);
  // Evicts everything unused; returns how many blocks became free.
  std::int32_t clear_cache();

 private:
  struct Extent {
    BlockId first;
    std::int32_t count = 0;
  };

  [[nodiscard]] std::span<const BlockRef> acquire_fresh(std::int32_t count, BlockId after,
                                                        Holds what = Holds::kWhole);
  std::int32_t evict(std::optional<PrefixMiss::Why> why);
  void free_blocks(std::int32_t count);
  void make_bytes(std::int64_t bytes);
  bool drop_reference(BlockRef block);
  std::span<const BlockRef> take(std::int32_t count, BlockId after, Holds what);
  [[nodiscard]] std::int32_t make_way(std::int32_t count, BlockId after);
  [[nodiscard]] bool is_cached(BlockId id) const;
  [[nodiscard]] std::optional<Extent> cheapest_extent(std::int32_t count) const;
  void empty(Extent extent);
  void move(BlockRef from, BlockRef to);
  [[nodiscard]] LentSlabs::Plan plan_for(const BlockCounts& wanted) const;
  [[nodiscard]] std::vector<std::int32_t> costs_of_lending() const;
  void evict_within(std::span<const LentSlabs::Loan> loans);
  void clear_for(LentSlabs::Blocks blocks);

  LedgerConfig config_;
  BlockPool pool_;
  LentSlabs lent_;
  WindowParts parts_;
  PrefixIndex index_;
  ReservedBlocks reserved_;
  std::array<std::int64_t, PrefixMiss::kNumWhys> num_evictions_{};
  CopyOrders copies_;
  std::int64_t num_moved_ = 0;
  const OnEviction on_eviction_;            // absent: nobody hears
  std::vector<BlockRef> taken_;             // by the last acquire_fresh, if in several pieces
  std::vector<BlockRef> taken_for_holder_;  // by the last acquire, if some were set aside
};

// Returns how many holders the block has, not counting the index.
[[nodiscard]] std::int32_t num_users(const SharedBlocks& shared, BlockRef block);

// Returns whether so many blocks can be had, whole ones and others without their window part.
[[nodiscard]] bool has_room(const SharedBlocks& shared, std::int32_t whole,
                            std::int32_t without_parts);

// Returns the bytes of the budget that are free, and those that nobody uses: cached blocks and idle
// window parts, too.
[[nodiscard]] std::int64_t bytes_free(const SharedBlocks& shared);
[[nodiscard]] std::int64_t bytes_available(const SharedBlocks& shared);

// Returns how many leading blocks of a path a sequence can go on behind: all window parts are there
// that its next row sees. `all`: those of all these blocks.
[[nodiscard]] std::int32_t usable_blocks(const SharedBlocks& shared, std::span<const BlockRef> path,
                                         bool all);

// Copies the window part of `from`, which is about to be released, to a block that has lost its
// own. The part belongs to the caller then. Returns false where the budget has no bytes for it.
[[nodiscard]] bool hand_over_part(SharedBlocks& shared, BlockRef from, BlockRef to);

}  // namespace quire::kv
