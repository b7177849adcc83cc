#include "quire/kv/block_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"

namespace quire::kv {
namespace {

constexpr BlockId kNothing{};

std::vector<std::int32_t> ids(std::span<const BlockRef> blocks) {
  std::vector<std::int32_t> values;
  for (const BlockRef block : blocks) {
    values.push_back(block.id.value);
  }
  return values;
}

using Ids = std::vector<std::int32_t>;

std::vector<BlockRef> copied(std::span<const BlockRef> blocks) {
  return {blocks.begin(), blocks.end()};
}

TEST(BlockPool, FirstBlocksAreConsecutiveFromZero) {
  BlockPool pool(8);
  EXPECT_EQ(ids(pool.acquire(3, kNothing)), (Ids{0, 1, 2}));
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(BlockPool, ContinuesBehindTheCallersLastBlock) {
  BlockPool pool(8);
  const std::vector<BlockRef> first = copied(pool.acquire(2, kNothing));
  EXPECT_EQ(ids(pool.acquire(2, first.back().id)), (Ids{2, 3}));
}

TEST(BlockPool, ANewcomerLeavesRoomForItsNeighbourToGrow) {
  BlockPool pool(16);
  const std::vector<BlockRef> first = copied(pool.acquire(2, kNothing));
  EXPECT_EQ(ids(pool.acquire(2, kNothing)), (Ids{6, 7}));
  EXPECT_EQ(ids(pool.acquire(4, first.back().id)), (Ids{2, 3, 4, 5}));
}

TEST(BlockPool, RestOfABrokenContinuationGoesToTheLargestExtent) {
  BlockPool pool(10);
  const std::vector<BlockRef> all = copied(pool.acquire(10, kNothing));
  for (const std::int32_t i : {1, 2, 5, 6, 7}) {
    pool.release(all[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(ids(pool.acquire(4, BlockId{0})), (Ids{1, 2, 5, 6}));
}

TEST(BlockPool, FragmentsAreUsedLargestFirstWhenNoneHoldsAll) {
  BlockPool pool(10);
  const std::vector<BlockRef> all = copied(pool.acquire(10, kNothing));
  for (const std::int32_t i : {0, 4, 5, 6, 8, 9}) {
    pool.release(all[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(ids(pool.acquire(6, kNothing)), (Ids{4, 5, 6, 8, 9, 0}));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPool, KnowsItsExtents) {
  BlockPool pool(10);
  const std::vector<BlockRef> all = copied(pool.acquire(10, kNothing));
  EXPECT_EQ(pool.largest_extent(), 0);
  for (const std::int32_t i : {1, 2, 5, 6, 7}) {
    pool.release(all[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(pool.largest_extent(), 3);
  EXPECT_EQ(pool.num_free_behind(BlockId{0}), 2);
  EXPECT_EQ(pool.num_free_behind(BlockId{2}), 0);
  EXPECT_EQ(pool.num_free_behind(BlockId{9}), 0);
  EXPECT_EQ(pool.num_free_behind(kNothing), 0);
}

TEST(BlockPool, WhatMakesWayGoesToTheSmallestExtentOutside) {
  BlockPool pool(12);
  const std::vector<BlockRef> all = copied(pool.acquire(12, kNothing));
  for (const std::int32_t i : {0, 1, 2, 4, 6, 7, 8, 10, 11}) {
    pool.release(all[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(pool.acquire_outside(BlockId{3}, 4).id.value, 7) << "two are left of 6 to 8, as of 10";
  EXPECT_EQ(pool.acquire_outside(BlockId{3}, 4).id.value, 8);
  EXPECT_EQ(pool.acquire_outside(BlockId{3}, 4).id.value, 10);
  EXPECT_EQ(pool.acquire_outside(BlockId{3}, 4).id.value, 11);
  EXPECT_EQ(pool.acquire_outside(BlockId{3}, 4).id.value, 0);
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(BlockPool, ReleaseOfSharedBlockKeepsIt) {
  BlockPool pool(2);
  const BlockRef block = pool.acquire(1, kNothing).front();
  pool.retain(block);
  EXPECT_FALSE(pool.release(block));
  EXPECT_EQ(pool.references(block.id), 1);
  EXPECT_TRUE(pool.release(block));
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, ReusedBlockHasAnotherGeneration) {
  BlockPool pool(1);
  const BlockRef first = pool.acquire(1, kNothing).front();
  pool.release(first);
  EXPECT_FALSE(pool.is_current(first));
  const BlockRef second = pool.acquire(1, kNothing).front();
  EXPECT_EQ(first.id, second.id);
  EXPECT_NE(first.generation, second.generation);
  EXPECT_FALSE(pool.is_current(first));
  EXPECT_TRUE(pool.is_current(second));
}

TEST(BlockPool, NoBlockIsCurrentOutsideThePool) {
  const BlockPool pool(1);
  EXPECT_FALSE(pool.is_current({BlockId{-1}, 0}));
  EXPECT_FALSE(pool.is_current({BlockId{1}, 0}));
}

TEST(BlockPool, WithheldBlocksAreNotHandedOut) {
  BlockPool pool(8);
  const BlockRef taken = pool.acquire(1, kNothing).front();
  pool.withhold(BlockId{1}, 4);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.num_withheld(), 4);
  EXPECT_EQ(pool.num_taken(), 1);
  EXPECT_EQ(pool.num_free_behind(taken.id), 0);
  EXPECT_EQ(pool.largest_extent(), 3);
  EXPECT_TRUE(pool.check().ok());
  EXPECT_EQ(ids(pool.acquire(3, taken.id)), (Ids{5, 6, 7}));
  pool.offer(BlockId{2}, 2);
  EXPECT_EQ(ids(pool.acquire(2, kNothing)), (Ids{2, 3}));
  EXPECT_EQ(pool.num_withheld(), 2);
  EXPECT_TRUE(pool.check().ok());
}

TEST(BlockPool, BlocksOfAnotherFormatAreWithheldAtFirstAndNamedByIt) {
  constexpr FormatId kOther{3};
  BlockPool pool(8, kOther);
  EXPECT_EQ(pool.num_free(), 0);
  pool.offer(BlockId{3}, 4);
  const BlockRef block = pool.acquire(2, kNothing).front();
  EXPECT_EQ(block.id.value, 3);
  EXPECT_EQ(block.format(), kOther);
  EXPECT_TRUE(pool.is_current(block));
  EXPECT_FALSE(pool.is_current({.id = {3}, .generation = 0})) << "of the pool's own format";
  EXPECT_EQ(pool.current(BlockId{3}), block);
  EXPECT_TRUE(pool.release(block));
  EXPECT_FALSE(pool.is_current(block));
  EXPECT_EQ(pool.current(BlockId{3}).format(), kOther);
  EXPECT_TRUE(pool.check().ok());
}

TEST(BlockPoolDeathTest, OnlyFreeBlocksAreWithheldAndOnlyWithheldOnesOffered) {
  BlockPool pool(2);
  const BlockRef taken = pool.acquire(1, kNothing).front();
  EXPECT_DEATH(pool.withhold(taken.id, 1), "not free");
  EXPECT_DEATH(pool.offer(taken.id, 1), "offered twice");
  EXPECT_DEATH(pool.offer(BlockId{1}, 1), "offered twice");
}

TEST(BlockPoolDeathTest, DoubleReleaseAborts) {
  BlockPool pool(1);
  const BlockRef block = pool.acquire(1, kNothing).front();
  pool.release(block);
  EXPECT_DEATH(pool.release(block), "released twice");
}

TEST(BlockPoolDeathTest, RetainOfAStaleHandleAborts) {
  BlockPool pool(1);
  const BlockRef block = pool.acquire(1, kNothing).front();
  pool.release(block);
  const BlockRef tenant = pool.acquire(1, kNothing).front();
  EXPECT_EQ(tenant.id, block.id);
  EXPECT_DEATH(pool.retain(block), "stale");
}

TEST(BlockPoolDeathTest, AcquireOfMoreThanFreeAborts) {
  BlockPool pool(1);
  EXPECT_DEATH((void)pool.acquire(2, kNothing), "more blocks");
  EXPECT_DEATH((void)pool.acquire_outside(BlockId{0}, 1), "outside");
}

// Oracle: a map from id to reference count. Sizes around the words of the free map.
TEST(BlockPool, RandomOperationsEqualAMapOfCounts) {
  for (const std::int32_t size : {1, 2, 63, 64, 65, 130}) {
    std::mt19937 random(static_cast<std::uint32_t>(size));
    BlockPool pool(size);
    std::map<std::int32_t, std::int32_t> counts;
    std::vector<BlockRef> held;
    for (int step = 0; step < 20000; ++step) {
      const bool take = held.empty() || random() % 2 == 0;
      if (take && pool.num_free() > 0) {
        const auto count = 1 + static_cast<std::int32_t>(random() % 5) % pool.num_free();
        const BlockId after = held.empty() ? kNothing : held[random() % held.size()].id;
        for (const BlockRef block : pool.acquire(count, after)) {
          ASSERT_EQ(counts[block.id.value]++, 0);
          held.push_back(block);
        }
      } else if (!held.empty() && random() % 4 == 0) {
        const BlockRef block = held[random() % held.size()];
        pool.retain(block);
        ++counts[block.id.value];
        held.push_back(block);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        const bool last = --counts[held.back().id.value] == 0;
        ASSERT_EQ(pool.release(held.back()), last);
        held.pop_back();
      }
      ASSERT_TRUE(pool.check().ok());
    }
  }
}

}  // namespace
}  // namespace quire::kv
