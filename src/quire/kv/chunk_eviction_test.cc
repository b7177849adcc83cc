// Which chunk the registry evicts where room is needed. Oracle: the order that its header states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <utility>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry_scene.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

TEST_F(ChunkRegistryTest, TheLeastRecentlyUsedGoesFirst) {
  for (const char name : {'a', 'b', 'c', 'd'}) {
    add(chunk(name));
  }
  registry.usage().use(id_of('a'));
  registry.merge(chunk('b'));
  (void)registry.get(id_of('c'), "");  // reading is no use
  add(chunk('e'));
  EXPECT_EQ(names(), "abde");
  add(chunk('f'));
  EXPECT_EQ(names(), "abef");
  EXPECT_EQ(registry.counts("").evictions, 2);
  EXPECT_EQ(registry.fate(id_of('c'), ""), "evicted 2 s ago to keep to max_chunks");
}

TEST_F(ChunkRegistryTest, LowerPriorityGoesBeforeOlderUse) {
  add(chunk('a'));
  for (const char name : {'b', 'c', 'd'}) {
    NewChunk low = chunk(name);
    low.priority = name == 'c' ? -1 : 0;
    add(std::move(low));
  }
  add(chunk('e'));
  EXPECT_EQ(names(), "abde");
  ASSERT_TRUE(registry.update(id_of('a'), "", {.priority = 5}).ok());
  add(chunk('f'));
  EXPECT_EQ(names(), "adef");
}

TEST_F(ChunkRegistryTest, WhatAClosedSessionAloneHasComposedGoesFirst) {
  for (const char name : {'a', 'b', 'c', 'd'}) {
    add(chunk(name));
  }
  const SessionRef closes = ledger.cache().open_session();
  const SessionRef stays = ledger.cache().open_session();
  registry.usage().use(id_of('b'), closes);
  registry.usage().use(id_of('c'), closes);
  registry.usage().use(id_of('c'), stays);
  registry.usage().use(id_of('d'), closes);
  registry.usage().use(id_of('d'));
  ledger.cache().close_session(closes);
  registry.usage().close_session(closes);
  add(chunk('e'));
  EXPECT_EQ(names(), "acde") << "a is older";
  ledger.cache().close_session(stays);
  registry.usage().close_session(stays);
  add(chunk('f'));
  EXPECT_EQ(names(), "adef") << "both have gone";
  add(chunk('g'));
  EXPECT_EQ(names(), "defg") << "d is somebody's who says nothing";
}

TEST_F(ChunkRegistryTest, AUseAfterTheEndOfItsSessionCounts) {
  for (const char name : {'a', 'b', 'c', 'd'}) {
    add(chunk(name));
  }
  const SessionRef session = ledger.cache().open_session();
  registry.usage().use(id_of('d'), session);
  ledger.cache().close_session(session);
  registry.usage().close_session(session);
  registry.merge(chunk('d'));
  add(chunk('e'));
  EXPECT_EQ(names(), "bcde");
}

TEST_F(ChunkRegistryTest, TheChunksOfWhoReturnsLaterGoFirst) {
  const TimePoint start{std::chrono::seconds(1'000)};
  ledger.cache().set_time(start);
  for (const char name : {'a', 'b', 'c', 'd'}) {
    add(chunk(name));
  }
  const SessionRef soon = ledger.cache().open_session();
  const SessionRef late = ledger.cache().open_session();
  registry.usage().use(id_of('a'), soon);
  registry.usage().use(id_of('c'), late);
  ledger.cache().set_retention(soon, {.expected_return = start + std::chrono::seconds(5)});
  ledger.cache().set_retention(late, {.expected_return = start + std::chrono::hours(5)});
  add(chunk('e'));
  EXPECT_EQ(names(), "abde");
  add(chunk('f'));
  EXPECT_EQ(names(), "adef") << "nobody said anything of b: least recently used";
}

TEST_F(ChunkRegistryTest, TheChunksOwnPriorityCountsBeforeItsSessions) {
  for (const char name : {'a', 'b', 'c', 'd'}) {
    NewChunk low = chunk(name);
    low.priority = name == 'c' ? -1 : 0;
    add(std::move(low));
  }
  const SessionRef session = ledger.cache().open_session();
  const SessionRef low = ledger.cache().open_session();
  ledger.cache().set_retention(session, {.priority = 7});
  ledger.cache().set_retention(low, {.priority = -7});
  registry.usage().use(id_of('c'), session);
  registry.usage().use(id_of('a'), session);
  registry.usage().use(id_of('d'), low);
  add(chunk('e'));
  EXPECT_EQ(names(), "abde");
  add(chunk('f'));
  EXPECT_EQ(names(), "abef");
  add(chunk('g'));
  EXPECT_EQ(names(), "aefg");
}

TEST_F(ChunkRegistryTest, AForgottenSessionIsSomebodyWithoutOne) {
  for (const char name : {'a', 'b', 'c', 'd'}) {
    add(chunk(name));
  }
  const SessionRef forgotten = ledger.cache().open_session();
  const SessionRef closed = ledger.cache().open_session();
  ledger.cache().set_retention(forgotten, {.priority = -1});
  registry.usage().use(id_of('d'), forgotten);
  registry.usage().use(id_of('d'), closed);
  ledger.cache().forget_session(forgotten);
  registry.usage().forget_session(forgotten);
  ledger.cache().close_session(closed);
  registry.usage().close_session(closed);
  add(chunk('e'));
  EXPECT_EQ(names(), "bcde");
}

TEST_F(ChunkRegistryTest, PinnedHeldAndPendingOnesNeverGo) {
  NewChunk pinned = chunk('a');
  pinned.pinned = true;
  add(std::move(pinned));
  add(chunk('b'));
  const auto hold = registry.usage().hold(id_of('b'));
  add(chunk('c'));
  ASSERT_TRUE(begin_variant(id_of('c'), {.before = "bos"}).ok());
  ASSERT_TRUE(registry.begin(chunk('d'), VariantKey{}).ok());
  const auto refused = registry.begin(chunk('e'), VariantKey{});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(names(), "abc") << "a refusal evicts nothing";
  registry.usage().release(hold);
  add(chunk('e'));
  EXPECT_EQ(names(), "ace");
  EXPECT_TRUE(registry.variants().end(id_of('d'), {}, std::nullopt).ok());
}

TEST_F(ChunkRegistryTest, BlocksAreBoundedAsChunksAre) {
  add(chunk('a', 8));
  add(chunk('b', 8));
  ASSERT_TRUE(registry.begin(chunk('c', 4, ChunkType::kQuery), std::nullopt).ok());
  registry.finish(id_of('c'));
  registry.usage().use(id_of('a'));
  registry.usage().use(id_of('b'));
  add(chunk('d', 12));
  EXPECT_EQ(names(), "bcd") << "one without blocks does not go for blocks";
  EXPECT_EQ(registry.fate(id_of('a'), ""),
            "evicted 1 s ago to keep to chunk_memory_ratio of the KV blocks");
  const auto never = registry.begin(chunk('e', 25), VariantKey{});
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(never.error().needed_bytes, 7 * 1024);
  EXPECT_EQ(never.error().free_bytes, 6 * 1024);
  EXPECT_EQ(names(), "bcd");
}

TEST_F(ChunkRegistryTest, WhatIsBegunSparesItselfAndWhatItStandsBehind) {
  add(chunk('a', 4, ChunkType::kSystemPrompt));
  add(chunk('b', 4));
  add(chunk('c', 16));
  ASSERT_TRUE(begin_variant(id_of('b'), {.before = id_of('a')}).ok());
  EXPECT_EQ(names(), "ab") << "c is younger, but the others are needed";
  EXPECT_TRUE(registry.variants().end(id_of('b'), {.before = id_of('a')}, segment(4)).ok());
  ASSERT_TRUE(registry.begin(chunk('d', 20), VariantKey{.before = id_of('a')}).ok());
  EXPECT_EQ(names(), "a");
  EXPECT_TRUE(registry.variants().end(id_of('d'), {.before = id_of('a')}, std::nullopt).ok());
  const auto refused = registry.begin(chunk('e', 24), VariantKey{.before = id_of('a')});
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
}

}  // namespace
}  // namespace quire::kv
