#include "quire/kv/shared_blocks.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/eviction_order.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {

SharedBlocks::SharedBlocks(const LedgerConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      index_(config.prefix_cache ? config.num_blocks : 0, config.block_tokens) {}

std::int32_t SharedBlocks::num_available() const { return pool_.num_free() + index_.num_unused(); }

std::int64_t SharedBlocks::num_evictions() const {
  return std::accumulate(num_evictions_.begin(), num_evictions_.end(), std::int64_t{0}) -
         num_evictions(PrefixMiss::Why::kCleared);
}

std::span<const BlockRef> SharedBlocks::acquire(std::int32_t count, BlockId after) {
  QUIRE_CHECK(count <= num_available(), "more blocks asked for than are free or evictable");
  while (pool_.num_free() < count) {
    evict({});
  }
  return pool_.acquire(count, after);
}

void SharedBlocks::retain(BlockRef block) {
  if (config_.prefix_cache && index_.is_unused(block)) {
    index_.set_used(block);
  }
  pool_.retain(block);
}

void SharedBlocks::adopt(BlockRef block, SessionRef session) {
  index_.order().use(block.id.value, session);
  retain(block);
}

void SharedBlocks::release(BlockRef block) {
  const bool freed = pool_.release(block);
  if (!freed && config_.prefix_cache && index_.contains(block) && num_users(block) == 0) {
    index_.set_unused(block);
  }
}

std::int32_t SharedBlocks::num_users(BlockRef block) const {
  const bool indexed = config_.prefix_cache && index_.contains(block);
  return pool_.references(block.id) - (indexed ? 1 : 0);
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

std::int32_t SharedBlocks::clear_cache() {
  std::int32_t freed = 0;
  while (index_.num_unused() > 0) {
    freed += evict(PrefixMiss::Why::kCleared);
  }
  return freed;
}

// Blocks that are in use below an evicted one only leave the index.
std::int32_t SharedBlocks::evict(std::optional<PrefixMiss::Why> why) {
  const PrefixIndex::Eviction done = index_.evict(why);
  std::int32_t freed = 0;
  for (const BlockRef block : done.blocks) {
    freed += pool_.release(block) ? 1 : 0;
  }
  num_evictions_[static_cast<std::size_t>(done.why)] += freed;
  return freed;
}

}  // namespace quire::kv
