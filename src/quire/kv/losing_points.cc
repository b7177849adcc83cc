#include "quire/kv/losing_points.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/point_keeper.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/types.h"

namespace quire::kv {

void LosingPoints::set_keeper(PointKeeper keeper) {
  keeper_ = std::move(keeper);
  states_->set_on_eviction([this](const States::KnownPoint& point) { state_goes(point); });
}

void LosingPoints::forget() const {
  if (keeper_.forget) {
    keeper_.forget();
  }
}

// Returns the blocks that hold the bytes of a path now.
std::vector<BlockId> LosingPoints::where(std::span<const BlockRef> path) const {
  std::vector<BlockId> blocks;
  blocks.reserve(path.size());
  for (const BlockRef block : path) {
    blocks.push_back(shared_->copies().source_of(block.id));
  }
  return blocks;
}

bool LosingPoints::keep(const States::KnownPoint& point, std::span<const BlockRef> path) const {
  return keeper_.keep({.salt = point.salt,
                       .tokens = point.tokens,
                       .state = point.state.index,
                       .blocks = where(path)});
}

// A point whose KV has gone is lost already.
void LosingPoints::state_goes(const States::KnownPoint& point) const {
  try {
    const auto step = static_cast<std::size_t>(shared_->config().block_tokens);
    const std::size_t full = point.tokens.size() / step;
    const std::vector<BlockRef> path =
        shared_->index().match(point.tokens.first(full * step), point.salt);
    if (path.size() == full) {
      (void)keep(point, path);
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is computed again
  }
}

// The points of which the block is the last full one. Those behind it went with its children.
void LosingPoints::block_goes(BlockRef block) const {
  if (!keeper_.keep) {
    return;
  }
  try {
    const PrefixIndex& index = shared_->index();
    std::vector<BlockRef> path;
    for (; block.id.value >= 0; block = index.parent_of(block)) {
      path.push_back(block);
    }
    std::ranges::reverse(path);
    std::vector<TokenId> tokens;
    for (const BlockRef each : path) {
      const std::span<const TokenId> more = index.tokens_of(each);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    const std::vector<States::KnownPoint> points =
        states_->points_within_block(tokens, index.salt_of(block), shared_->config().block_tokens);
    for (const States::KnownPoint& point : points) {
      if (keep(point, path)) {
        states_->drop_idle(point);
      }
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is computed again
  }
}

}  // namespace quire::kv
