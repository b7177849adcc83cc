#include "quire/kv/shared_blocks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

// A path of published blocks with tokens {first}, {first + 1}, ...; one token each.
BlockTable published_path(SharedBlocks& shared, std::int32_t length, TokenId first) {
  BlockTable table(shared);
  BlockRef parent = kIndexRoot;
  for (const BlockRef block : shared.acquire(length, BlockId{})) {
    table.push(block);
    parent = shared.publish(parent, block, Tokens{first++});
  }
  return table;
}

TEST(SharedBlocks, ReleasedPublishedBlockIsCachedAndAnotherIsFree) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1});
  {
    BlockTable table = published_path(shared, 1, 5);
    table.push(shared.acquire(1, BlockId{}).front());
    EXPECT_EQ(shared.num_available(), 1);
  }
  EXPECT_EQ(shared.pool().num_free(), 2);
  EXPECT_EQ(shared.index().num_unused(), 1);
  EXPECT_EQ(shared.num_available(), 3);
}

TEST(SharedBlocks, AcquireEvictsOnlyWhatItNeeds) {
  SharedBlocks shared({.num_blocks = 4, .block_tokens = 1});
  {
    const BlockTable table = published_path(shared, 3, 5);
  }
  EXPECT_EQ(shared.acquire(2, BlockId{}).size(), 2U);
  EXPECT_EQ(shared.num_evictions(), 1);
  EXPECT_EQ(shared.index().match(Tokens{5, 6, 7}).size(), 2U) << "the deepest block goes first";
}

// Tokens are block ids, so that where a block's KV lies can be seen.
class ScatteredBlocks : public testing::Test {
 protected:
  // Blocks of a full pool: 'u' in use, 'c' cached, each for itself, oldest first; '.' free.
  SharedBlocks& lay(const std::string& map, std::int32_t extent_blocks,
                    std::int32_t window_tokens = 0) {
    const auto count = static_cast<std::int32_t>(map.size());
    shared_ = std::make_unique<SharedBlocks>(LedgerConfig{.num_blocks = count,
                                                          .block_tokens = 1,
                                                          .window_tokens = window_tokens,
                                                          .extent_blocks = extent_blocks});
    const std::span<const BlockRef> taken = shared_->acquire(count, BlockId{});
    for (const BlockRef block : std::vector(taken.begin(), taken.end())) {
      const char kind = map[static_cast<std::size_t>(block.id.value)];
      if (kind == 'c') {
        EXPECT_EQ(shared_->publish(kIndexRoot, block, Tokens{block.id.value}), block);
      }
      if (kind != 'u') {
        shared_->release(block);
      }
    }
    return *shared_;
  }

  static std::vector<std::int32_t> ids(std::span<const BlockRef> blocks) {
    std::vector<std::int32_t> values;
    for (const BlockRef block : blocks) {
      values.push_back(block.id.value);
    }
    return values;
  }

  // Where the KV lies that was in `block`; -1: nowhere any more.
  [[nodiscard]] std::int32_t place_of(std::int32_t block) const {
    const std::vector<BlockRef> found = shared_->index().match(Tokens{block});
    return found.empty() ? -1 : found.front().id.value;
  }

 private:
  std::unique_ptr<SharedBlocks> shared_;
};

using Ids = std::vector<std::int32_t>;

TEST_F(ScatteredBlocks, CachedOnesMakeWayForAnExtent) {
  SharedBlocks& shared = lay(".uc.c.cu.", 4);
  EXPECT_EQ(ids(shared.acquire(4, BlockId{})), (Ids{2, 3, 4, 5})) << "two to move, as for 3 to 6";
  EXPECT_EQ(place_of(2), 0);
  EXPECT_EQ(place_of(4), 8);
  EXPECT_EQ(place_of(6), 6);
  EXPECT_EQ(shared.num_moved(), 2);
  EXPECT_EQ(shared.num_evictions(), 0);
  const std::vector<BlockCopy> copies = shared.copies().take();
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0].from.value, 2);
  EXPECT_EQ(copies[0].to.value, 0);
  EXPECT_EQ(copies[0].tokens, 1);
  EXPECT_TRUE(shared.copies().take().empty());
  const Status status = shared.index().check();
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST_F(ScatteredBlocks, WhatIsEvictedDoesNotDependOnWhereBlocksLie) {
  for (const std::int32_t extent_blocks : {1, 4}) {
    SharedBlocks& shared = lay("cucucuccccuc", extent_blocks);
    EXPECT_EQ(shared.acquire(4, BlockId{}).size(), 4U);
    EXPECT_EQ(shared.num_evictions(), 4);
    for (const std::int32_t gone : {0, 2, 4, 6}) {
      EXPECT_EQ(place_of(gone), -1) << "the least recently used ones";
    }
    for (const std::int32_t kept : {7, 8, 9, 11}) {
      EXPECT_GE(place_of(kept), 0);
    }
  }
}

TEST_F(ScatteredBlocks, MovedOnesAreEvictedInTheirTurn) {
  SharedBlocks& shared = lay(".u.cccu", 3);
  EXPECT_EQ(ids(shared.acquire(2, BlockId{})), (Ids{2, 3}));
  EXPECT_EQ(place_of(3), 0);
  EXPECT_EQ(ids(shared.acquire(1, BlockId{})), (Ids{0})) << "the oldest";
}

TEST_F(ScatteredBlocks, AFreeExtentIsTakenAsItIs) {
  SharedBlocks& shared = lay("c.c..c", 2);
  EXPECT_EQ(ids(shared.acquire(2, BlockId{})), (Ids{3, 4}));
  EXPECT_EQ(shared.num_moved(), 0);
}

TEST_F(ScatteredBlocks, ASingleBlockMovesNothing) {
  SharedBlocks& shared = lay("uc.", 8);
  EXPECT_EQ(ids(shared.acquire(1, BlockId{0})), (Ids{2}));
  EXPECT_EQ(shared.num_moved(), 0);
}

TEST_F(ScatteredBlocks, WhatCannotContinueLiesTogetherElsewhere) {
  SharedBlocks& shared = lay("u.u.c.", 3);
  EXPECT_EQ(ids(shared.acquire(3, BlockId{0})), (Ids{1, 3, 4}));
  EXPECT_EQ(shared.num_moved(), 1);
}

TEST_F(ScatteredBlocks, ALargeRequestTakesSeveralExtents) {
  SharedBlocks& shared = lay(".cu.c.uc.u.cuc", 2);
  EXPECT_EQ(ids(shared.acquire(5, BlockId{})), (Ids{0, 1, 3, 4, 5}));
  EXPECT_EQ(shared.num_moved(), 3) << "one of them twice";
}

TEST_F(ScatteredBlocks, BlocksInUseAndThoseOfAWindowStay) {
  SharedBlocks& used = lay(".u.u.", 2);
  EXPECT_EQ(used.acquire(2, BlockId{}).size(), 2U);
  EXPECT_EQ(used.num_moved(), 0);
  SharedBlocks& windowed = lay("uc.c.cu", 2, 5);
  EXPECT_EQ(windowed.acquire(2, BlockId{}).size(), 2U);
  EXPECT_EQ(windowed.num_moved(), 0);
}

TEST(SharedBlocks, BlocksInUseAreNeverEvicted) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1});
  const BlockTable used = published_path(shared, 2, 5);
  {
    const BlockTable unused = published_path(shared, 1, 9);
  }
  EXPECT_EQ(shared.num_available(), 1);
  EXPECT_EQ(shared.acquire(1, BlockId{}).size(), 1U);
  EXPECT_EQ(shared.index().match(Tokens{5, 6}).size(), 2U);
  EXPECT_TRUE(shared.index().match(Tokens{9}).empty());
}

TEST(SharedBlocks, RetainingACachedBlockProtectsIt) {
  SharedBlocks shared({.num_blocks = 2, .block_tokens = 1});
  {
    const BlockTable table = published_path(shared, 1, 5);
  }
  const BlockRef found = shared.index().match(Tokens{5}).front();
  shared.retain(found);
  EXPECT_EQ(shared.num_available(), 1);
  EXPECT_EQ(num_users(shared, found), 1);
  EXPECT_TRUE(shared.is_shared(found)) << "the index holds it as well";
  shared.release(found);
  EXPECT_EQ(shared.num_available(), 2);
}

TEST(SharedBlocks, PublishOfKnownTokensReturnsTheKnownBlock) {
  SharedBlocks shared({.num_blocks = 2, .block_tokens = 1});
  const BlockTable first = published_path(shared, 1, 5);
  BlockTable second(shared);
  second.push(shared.acquire(1, BlockId{}).front());
  EXPECT_EQ(shared.publish(kIndexRoot, second.ref(0), Tokens{5}), first.ref(0));
  EXPECT_EQ(num_users(shared, second.ref(0)), 1);
  EXPECT_FALSE(shared.is_shared(second.ref(0)));
}

TEST(SharedBlocks, ClearCacheFreesAllThatNobodyUses) {
  SharedBlocks shared({.num_blocks = 5, .block_tokens = 1});
  const BlockTable used = published_path(shared, 2, 5);
  {
    const BlockTable unused = published_path(shared, 3, 9);
  }
  EXPECT_EQ(shared.clear_cache(), 3);
  EXPECT_EQ(shared.pool().num_free(), 3);
  EXPECT_EQ(shared.index().match(Tokens{5, 6}).size(), 2U);
  EXPECT_EQ(shared.num_evictions(), 0);
}

TEST(SharedBlocks, UsedBlocksBelowAnEvictedOneOnlyLeaveTheIndex) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1, .window_tokens = 1});
  BlockTable table = published_path(shared, 3, 5);
  table.give_up_front(1);
  EXPECT_EQ(shared.num_available(), 1);
  EXPECT_EQ(shared.acquire(1, BlockId{}).size(), 1U);
  EXPECT_EQ(shared.num_evictions(), 1);
  EXPECT_FALSE(shared.index().contains(table.ref(2)));
  EXPECT_EQ(num_users(shared, table.ref(2)), 1);
  table.truncate(0);
  EXPECT_EQ(shared.pool().num_free(), 2);
}

TEST(BlockTable, CloneHoldsTheSameBlocks) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1, .prefix_cache = false});
  BlockTable table(shared);
  for (const BlockRef block : shared.acquire(3, BlockId{})) {
    table.push(block);
  }
  BlockTable copy = table.clone(2);
  table.truncate(0);
  EXPECT_EQ(copy.size(), 2);
  EXPECT_EQ(shared.pool().num_free(), 1);
  copy = BlockTable(shared);
  EXPECT_EQ(shared.pool().num_free(), 3);
}

TEST(BlockTable, GivenUpBlocksKeepTheirPlacesWithoutAnId) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1, .prefix_cache = false});
  BlockTable table(shared);
  for (const BlockRef block : shared.acquire(3, BlockId{})) {
    table.push(block);
  }
  table.give_up_front(2);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(table.num_live(), 1);
  EXPECT_EQ(table.ids()[0].value, -1);
  EXPECT_EQ(table.ids()[2].value, 2);
  EXPECT_FALSE(shared.pool().is_current(table.ref(0)));
  const BlockTable copy = table.clone(3);
  EXPECT_EQ(copy.num_given_up(), 2);
  table.truncate(1);
  EXPECT_EQ(table.num_given_up(), 1);
  EXPECT_EQ(table.num_live(), 0);
  EXPECT_EQ(shared.pool().num_free(), 2);
}

TEST(BlockTable, MoveTakesTheReferencesAlong) {
  SharedBlocks shared({.num_blocks = 2, .block_tokens = 1, .prefix_cache = false});
  BlockTable table(shared);
  table.push(shared.acquire(1, BlockId{}).front());
  {
    const BlockTable moved = std::move(table);
    EXPECT_EQ(moved.size(), 1);
    EXPECT_EQ(shared.pool().num_free(), 1);
  }
  EXPECT_EQ(shared.pool().num_free(), 2);
}

}  // namespace
}  // namespace quire::kv
