#include "quire/kv/shared_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/eviction_order.h"
#include "quire/kv/format.h"
#include "quire/kv/lent_slabs.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/reserved_blocks.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {

SharedBlocks::SharedBlocks(const LedgerConfig& config, OnEviction on_eviction)
    : config_(config),
      pool_(config.num_ids()),
      lent_(config),
      parts_(config),
      index_(config.prefix_cache ? config.num_ids() : 0, config.block_tokens),
      reserved_(pool_),
      copies_(config.num_ids()),
      on_eviction_(std::move(on_eviction)) {
  if (config.standing_open_blocks > 0) {
    BlockCounts standing;
    standing[config.open_format().value_or(kOwnFormat)] = config.standing_open_blocks;
    lend_for(standing);
    lent_.keep_loans();
  }
}

std::int32_t SharedBlocks::num_available(FormatId format) const {
  if (format != kOwnFormat) {
    return lent_.within_reach(format, costs_of_lending(), bytes_available(*this));
  }
  const std::int32_t ids = pool_.num_free() + reserved_.size() + index_.num_unused();
  return parts_.exist() ? std::min(ids, static_cast<std::int32_t>(bytes_available(*this) /
                                                                  config_.block_bytes(kOwnFormat)))
                        : ids;
}

// Drops idle parts and evicts cached blocks until so many bytes are free. Parts that a window
// passed over go first. Those at points go after the last cached block, since with them goes the
// use of the block.
void SharedBlocks::make_bytes(std::int64_t bytes) {
  while (parts_.exist() && bytes_free(*this) < bytes) {
    if (parts_.num_passed() > 0 || index_.num_unused() == 0) {
      parts_.drop_next();
    } else {
      evict({});
    }
  }
}

LentSlabs::Plan SharedBlocks::plan_for(const BlockCounts& wanted) const {
  BlockCounts others = wanted;
  others[kOwnFormat] = 0;
  LentSlabs::Plan plan;
  if (others != BlockCounts()) {
    plan = lent_.plan(others, costs_of_lending(), bytes_available(*this));
  }
  const std::int32_t left = num_available() - plan.own_blocks;
  plan.lacking[kOwnFormat] = std::max(wanted[kOwnFormat] - left, 0);
  return plan;
}

BlockCounts SharedBlocks::lacking(const BlockCounts& wanted) const {
  return plan_for(wanted).lacking;
}

// The cost is the number of blocks that must move or go: cached ones, and those set aside.
std::vector<std::int32_t> SharedBlocks::costs_of_lending() const {
  std::vector<std::int32_t> costs(static_cast<std::size_t>(lent_.num_slabs()), LentSlabs::kPinned);
  std::vector<bool> set_aside(static_cast<std::size_t>(pool_.num_blocks()));
  reserved_.visit([&](ReservedBlocks::Holder, BlockRef block) {
    set_aside[static_cast<std::size_t>(block.id.value)] = true;
  });
  for (std::int32_t slab = 0; slab < lent_.num_slabs(); ++slab) {
    if (lent_.owner(slab) != kOwnFormat) {
      continue;
    }
    const LentSlabs::Blocks blocks = lent_.own_blocks(slab);
    std::int32_t cost = 0;
    for (std::int32_t i = 0; i < blocks.count && cost != LentSlabs::kPinned; ++i) {
      const BlockId id{blocks.first.value + i};
      const bool free = pool_.is_free(id);
      const bool goes = set_aside[static_cast<std::size_t>(id.value)] || is_cached(id);
      cost = free || goes ? cost + (free ? 0 : 1) : LentSlabs::kPinned;
    }
    costs[static_cast<std::size_t>(slab)] = cost;
  }
  return costs;
}

// Memory first: what is refused has evicted and moved nothing. Free blocks of all these slabs are
// withheld before anything moves, so that nothing moves from one slab to another one.
void SharedBlocks::lend_for(const BlockCounts& wanted) {
  const LentSlabs::Plan plan = plan_for(wanted);
  QUIRE_CHECK(plan.lacking == BlockCounts(), "more blocks asked for than are within reach");
  if (plan.loans.empty()) {
    return;
  }
  copies_.reserve_more(0);
  for (const LentSlabs::Loan loan : plan.loans) {
    const LentSlabs::Blocks blocks = lent_.own_blocks(loan.slab);
    reserved_.give_back_within(blocks.first, blocks.count);
  }
  free_blocks(plan.own_blocks);
  make_bytes(plan.own_blocks * config_.block_bytes(kOwnFormat));
  if (config_.window_tokens > 0) {
    evict_within(plan.loans);
  }
  for (const LentSlabs::Loan loan : plan.loans) {
    const LentSlabs::Blocks blocks = lent_.own_blocks(loan.slab);
    for (std::int32_t i = 0; i < blocks.count; ++i) {
      const BlockId id{blocks.first.value + i};
      if (pool_.is_free(id)) {
        pool_.withhold(id, 1);
      }
    }
  }
  for (const LentSlabs::Loan loan : plan.loans) {
    clear_for(lent_.own_blocks(loan.slab));
    lent_.lend(loan);
  }
}

// Evicts in order until nothing in these slabs is cached.
void SharedBlocks::evict_within(std::span<const LentSlabs::Loan> loans) {
  for (const LentSlabs::Loan loan : loans) {
    const LentSlabs::Blocks blocks = lent_.own_blocks(loan.slab);
    for (std::int32_t i = 0; i < blocks.count; ++i) {
      while (!pool_.is_free(BlockId{blocks.first.value + i})) {
        evict({});
      }
    }
  }
}

// Moves what is cached in blocks of which the free ones are withheld, and withholds the others.
void SharedBlocks::clear_for(LentSlabs::Blocks blocks) {
  for (std::int32_t i = 0; i < blocks.count; ++i) {
    const BlockRef from = pool_.current({blocks.first.value + i});
    if (pool_.references(from.id) > 0) {
      move(from, pool_.acquire_outside(BlockId{0}, 0));
      pool_.withhold(from.id, 1);
    }
  }
}

std::span<const BlockRef> SharedBlocks::acquire(FormatId format, std::int32_t count) {
  return format == kOwnFormat ? acquire(count, BlockId{}) : lent_.acquire(format, count, pool_);
}

std::int64_t SharedBlocks::num_evictions(std::optional<PrefixMiss::Why> why) const {
  const auto of = [this](PrefixMiss::Why one) {
    return num_evictions_[static_cast<std::size_t>(one)];
  };
  return why ? of(*why)
             : std::accumulate(num_evictions_.begin(), num_evictions_.end(), std::int64_t{0}) -
                   of(PrefixMiss::Why::kCleared);
}

// Makes so many blocks free: first those that are set aside, then cached ones.
void SharedBlocks::free_blocks(std::int32_t count) {
  while (pool_.num_free() < count) {
    reserved_.size() > 0 ? reserved_.give_one_back() : static_cast<void>(evict({}));
  }
}

std::span<const BlockRef> SharedBlocks::acquire(std::int32_t count, BlockId after,
                                                ReservedBlocks::Holder holder, Holds what) {
  const std::int32_t aside = std::min(count, reserved_.size(holder));
  if (aside == 0) {
    return acquire_fresh(count, after, what);
  }
  QUIRE_CHECK(what == Holds::kWhole, "blocks without window parts are set aside for nobody");
  taken_for_holder_.reserve(static_cast<std::size_t>(count));
  taken_for_holder_.clear();
  make_bytes(count * config_.block_bytes(kOwnFormat));
  for (std::int32_t i = 0; i < aside; ++i) {
    taken_for_holder_.push_back(reserved_.take(holder));
    parts_.make(taken_for_holder_.back().id);
  }
  try {
    const std::span<const BlockRef> more =
        acquire_fresh(count - aside, taken_for_holder_.back().id);
    taken_for_holder_.insert(taken_for_holder_.end(), more.begin(), more.end());
  } catch (const std::bad_alloc&) {
    std::ranges::for_each(taken_for_holder_,
                          [this](BlockRef block) { release(block, Holds::kWhole); });
    throw;
  }
  return taken_for_holder_;
}

// Takes blocks. Reserves memory first: a call that throws has evicted and moved nothing.
std::span<const BlockRef> SharedBlocks::acquire_fresh(std::int32_t count, BlockId after,
                                                      Holds what) {
  const bool whole = what == Holds::kWhole;
  QUIRE_CHECK(whole ? count <= num_available() : has_room(*this, 0, count),
              "more blocks asked for than are free or evictable");
  if (count > 1 && config_.extent_blocks > 1 && config_.window_tokens == 0) {
    copies_.reserve_more(0);
    taken_.reserve(static_cast<std::size_t>(count));
  }
  free_blocks(count);
  make_bytes(count * (whole ? config_.block_bytes(kOwnFormat) : config_.full_bytes()));
  std::int32_t piece = make_way(count, after);
  if (piece == count) {
    return take(count, after, what);
  }
  taken_.clear();
  for (std::int32_t rest = count; rest > 0; rest -= piece) {
    piece = taken_.empty() ? piece : make_way(rest, after);
    const std::span<const BlockRef> taken = take(piece, after, what);
    taken_.insert(taken_.end(), taken.begin(), taken.end());
    after = taken.back().id;
  }
  return taken_;
}

// Takes free blocks, each with its window part if it is to be whole.
std::span<const BlockRef> SharedBlocks::take(std::int32_t count, BlockId after, Holds what) {
  const std::span<const BlockRef> taken = pool_.acquire(count, after);
  if (what == Holds::kWhole) {
    std::ranges::for_each(taken, [this](BlockRef block) { parts_.make(block.id); });
  }
  return taken;
}

// Returns how many of `count` blocks the pool can give side by side now, after moving cached blocks
// out of the way. Moves none with a window: then sequences find blocks that they have given up by
// their handles.
std::int32_t SharedBlocks::make_way(std::int32_t count, BlockId after) {
  const std::int32_t extent = config_.extent_blocks;
  if (count <= 1 || extent <= 1 || config_.window_tokens > 0) {
    return count;
  }
  if (const std::int32_t behind = pool_.num_free_behind(after); behind > 0) {
    return std::min(behind, count);
  }
  for (const std::int32_t piece : {count, extent}) {
    const bool leaves_too_few = piece < count && count < 2 * extent;
    if (leaves_too_few) {
      break;
    }
    if (pool_.largest_extent() >= piece) {
      return piece;
    }
    if (const std::optional<Extent> cheapest = cheapest_extent(piece)) {
      empty(*cheapest);
      return piece;
    }
  }
  return count;
}

bool SharedBlocks::is_cached(BlockId id) const {
  return config_.prefix_cache && index_.is_unused(pool_.current(id));
}

// Returns the extent with the fewest blocks to move, or nothing when each has a block in use.
std::optional<SharedBlocks::Extent> SharedBlocks::cheapest_extent(std::int32_t count) const {
  std::optional<Extent> best;
  std::int32_t best_moves = count + 1;
  std::int32_t length = 0;
  std::int32_t moves = 0;
  for (std::int32_t id = 0; id < pool_.num_blocks(); ++id) {
    const bool free = pool_.references({id}) == 0;
    if (free ? !pool_.is_free(BlockId{id}) : !is_cached({id})) {
      length = moves = 0;
      continue;
    }
    moves += free ? 0 : 1;
    if (++length > count) {
      --length;
      moves -= pool_.references({id - count}) == 0 ? 0 : 1;
    }
    if (length == count && moves < best_moves) {
      best = {.first = {id - count + 1}, .count = count};
      best_moves = moves;
    }
  }
  return best;
}

void SharedBlocks::empty(Extent extent) {
  for (std::int32_t i = 0; i < extent.count; ++i) {
    const BlockRef from = pool_.current({extent.first.value + i});
    if (pool_.references(from.id) > 0) {
      const BlockRef to = pool_.acquire_outside(extent.first, extent.count);
      move(from, to);
    }
  }
}

void SharedBlocks::move(BlockRef from, BlockRef to) {
  index_.move(from, to);
  const bool has_part = parts_.is_there(from.id);
  parts_.move(from.id, to.id);
  pool_.release(from);
  copies_.add({.from = from.id,
               .to = to.id,
               .tokens = config_.block_tokens,
               .parts = has_part ? BlockCopy::Parts::kAll : BlockCopy::Parts::kFull});
  ++num_moved_;
}

bool SharedBlocks::drop_reference(BlockRef block) {
  const bool freed = pool_.release(block);
  if (freed) {
    parts_.free(block.id);
  }
  return freed;
}

void SharedBlocks::retain(BlockRef block, Holds what) {
  if (block.format() != kOwnFormat) {
    return lent_.retain(block);
  }
  if (what == Holds::kWhole) {
    parts_.hold(block.id);
  }
  if (config_.prefix_cache && index_.is_unused(block)) {
    index_.set_used(block);
  }
  pool_.retain(block);
}

void SharedBlocks::adopt(BlockRef block, SessionRef session, Holds what) {
  index_.order().use(block.id.value, session);
  retain(block, what);
}

// A later sequence goes on where a closed one ended, so that is a point.
void SharedBlocks::release(BlockRef block, Holds what) {
  if (block.format() != kOwnFormat) {
    return lent_.release(block, pool_);
  }
  if (what == Holds::kWhole) {
    parts_.let_go(block.id, true);
  }
  const bool freed = drop_reference(block);
  if (!freed && config_.prefix_cache && index_.contains(block) && num_users(*this, block) == 0) {
    index_.set_unused(block);
  }
}

BlockRef SharedBlocks::publish(BlockRef parent, BlockRef block, std::span<const TokenId> tokens,
                               SessionRef session) {
  if (const std::optional<BlockRef> known = index_.find(parent, tokens)) {
    return *known;
  }
  index_.insert(parent, block, tokens, session);
  pool_.retain(block);
  return block;
}

void SharedBlocks::forget(std::span<const BlockRef> path) {
  if (!config_.prefix_cache) {
    return;
  }
  for (auto block = path.rbegin(); block != path.rend(); ++block) {
    if (block->format() != kOwnFormat || !index_.contains(*block)) {
      continue;  // the last one, which is not full
    }
    if (!index_.forget(*block)) {
      return;
    }
    drop_reference(*block);
  }
}

std::int32_t SharedBlocks::clear_cache() {
  std::int32_t freed = 0;
  while (index_.num_unused() > 0) {
    freed += evict(PrefixMiss::Why::kCleared);
  }
  return freed;
}

// Evicts the next blocks and returns how many became free. Blocks that are in use below an evicted
// one only leave the index.
std::int32_t SharedBlocks::evict(std::optional<PrefixMiss::Why> why) {
  const PrefixIndex::Eviction done = index_.next_eviction(why);
  if (on_eviction_ && done.why != PrefixMiss::Why::kCleared) {
    std::ranges::for_each(done.blocks, on_eviction_);
  }
  index_.evict(done);
  std::int32_t freed = 0;
  for (const BlockRef block : done.blocks) {
    freed += drop_reference(block) ? 1 : 0;
  }
  num_evictions_[static_cast<std::size_t>(done.why)] += freed;
  return freed;
}

std::int32_t num_users(const SharedBlocks& shared, BlockRef block) {
  const bool indexed = block.format() == kOwnFormat && shared.config().prefix_cache &&
                       shared.index().contains(block);
  return shared.pool(block.format()).references(block.id) - (indexed ? 1 : 0);
}

bool has_room(const SharedBlocks& shared, std::int32_t whole, std::int32_t without_parts) {
  const LedgerConfig& config = shared.config();
  const std::int32_t ids =
      shared.pool().num_free() + shared.reserved().size() + shared.index().num_unused();
  return whole + without_parts <= ids &&
         whole * config.block_bytes(kOwnFormat) + without_parts * config.full_bytes() <=
             bytes_available(shared);
}

// Slabs that are lent count with all their bytes, as what is free in them is for one format.
std::int64_t bytes_free(const SharedBlocks& shared) {
  const LedgerConfig& config = shared.config();
  return config.budget_bytes() -
         (shared.pool().num_taken() - shared.reserved().size()) * config.full_bytes() -
         shared.parts().num_there() * config.window_group.block_bytes - shared.lent().bytes_lent();
}

std::int64_t bytes_available(const SharedBlocks& shared) {
  const LedgerConfig& config = shared.config();
  return bytes_free(shared) + shared.index().num_unused() * config.full_bytes() +
         shared.parts().num_idle() * config.window_group.block_bytes;
}

std::int32_t usable_blocks(const SharedBlocks& shared, std::span<const BlockRef> path, bool all) {
  const LedgerConfig& config = shared.config();
  auto usable = static_cast<std::int32_t>(path.size());
  if (!shared.parts().exist()) {
    return usable;
  }
  const auto first_seen = [&] {
    const std::int32_t tokens = usable * config.block_tokens - config.window_group.tokens + 1;
    return all ? 0 : std::max(tokens, 0) / config.block_tokens;
  };
  for (std::int32_t i = usable - 1; i >= first_seen(); --i) {
    usable = shared.parts().is_there(path[static_cast<std::size_t>(i)].id) ? usable : i;
  }
  return usable;
}

// The copy is made before the next write, so the bytes of `from` are still there.
bool hand_over_part(SharedBlocks& shared, BlockRef from, BlockRef to) {
  const LedgerConfig& config = shared.config();
  if (shared.is_shared(from) && bytes_free(shared) < config.window_group.block_bytes) {
    return false;
  }
  shared.copies().reserve_more(1);
  shared.parts().make(to.id);
  shared.copies().add({.from = from.id,
                       .to = to.id,
                       .tokens = config.block_tokens,
                       .parts = BlockCopy::Parts::kWindow});
  return true;
}

}  // namespace quire::kv
