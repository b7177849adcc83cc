#include "quire/kv/shared_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

// A chain of published blocks with tokens {first}, {first + 1}, ...; one token each.
BlockTable published_chain(SharedBlocks& shared, std::int32_t length, TokenId first) {
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
    BlockTable table = published_chain(shared, 1, 5);
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
    const BlockTable table = published_chain(shared, 3, 5);
  }
  EXPECT_EQ(shared.acquire(2, BlockId{}).size(), 2U);
  EXPECT_EQ(shared.num_evictions(), 1);
  EXPECT_EQ(shared.index().match(Tokens{5, 6, 7}).size(), 2U) << "the deepest block goes first";
}

TEST(SharedBlocks, BlocksInUseAreNeverEvicted) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1});
  const BlockTable used = published_chain(shared, 2, 5);
  {
    const BlockTable unused = published_chain(shared, 1, 9);
  }
  EXPECT_EQ(shared.num_available(), 1);
  EXPECT_EQ(shared.acquire(1, BlockId{}).size(), 1U);
  EXPECT_EQ(shared.index().match(Tokens{5, 6}).size(), 2U);
  EXPECT_TRUE(shared.index().match(Tokens{9}).empty());
}

TEST(SharedBlocks, RetainingACachedBlockProtectsIt) {
  SharedBlocks shared({.num_blocks = 2, .block_tokens = 1});
  {
    const BlockTable table = published_chain(shared, 1, 5);
  }
  const BlockRef found = shared.index().match(Tokens{5}).front();
  shared.retain(found);
  EXPECT_EQ(shared.num_available(), 1);
  EXPECT_EQ(shared.num_users(found), 1);
  EXPECT_TRUE(shared.is_shared(found)) << "the index holds it as well";
  shared.release(found);
  EXPECT_EQ(shared.num_available(), 2);
}

TEST(SharedBlocks, PublishOfKnownTokensReturnsTheKnownBlock) {
  SharedBlocks shared({.num_blocks = 2, .block_tokens = 1});
  const BlockTable first = published_chain(shared, 1, 5);
  BlockTable second(shared);
  second.push(shared.acquire(1, BlockId{}).front());
  EXPECT_EQ(shared.publish(kIndexRoot, second.ref(0), Tokens{5}), first.ref(0));
  EXPECT_EQ(shared.num_users(second.ref(0)), 1);
  EXPECT_FALSE(shared.is_shared(second.ref(0)));
}

TEST(SharedBlocks, ClearCacheFreesAllThatNobodyUses) {
  SharedBlocks shared({.num_blocks = 5, .block_tokens = 1});
  const BlockTable used = published_chain(shared, 2, 5);
  {
    const BlockTable unused = published_chain(shared, 3, 9);
  }
  EXPECT_EQ(shared.clear_cache(), 3);
  EXPECT_EQ(shared.pool().num_free(), 3);
  EXPECT_EQ(shared.index().match(Tokens{5, 6}).size(), 2U);
  EXPECT_EQ(shared.num_evictions(), 0);
}

TEST(SharedBlocks, UsedBlocksBelowAnEvictedOneOnlyLeaveTheIndex) {
  SharedBlocks shared({.num_blocks = 3, .block_tokens = 1, .window_tokens = 1});
  BlockTable table = published_chain(shared, 3, 5);
  table.give_up_front(1);
  EXPECT_EQ(shared.num_available(), 1);
  EXPECT_EQ(shared.acquire(1, BlockId{}).size(), 1U);
  EXPECT_EQ(shared.num_evictions(), 1);
  EXPECT_FALSE(shared.index().contains(table.ref(2)));
  EXPECT_EQ(shared.num_users(table.ref(2)), 1);
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
