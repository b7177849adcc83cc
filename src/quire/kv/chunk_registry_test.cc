// The rules of chunk_registry.h, one by one, with a clock of the test's own.
#include "quire/kv/chunk_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int32_t kBlockTokens = 4;

class ChunkRegistryTest : public testing::Test {
 protected:
  explicit ChunkRegistryTest(std::int32_t max_chunks = 4, std::int32_t max_blocks = 6)
      : registry({.max_chunks = max_chunks,
                  .max_blocks = max_blocks,
                  .block_bytes = 1024,
                  .now = [this] { return now; }},
                 ledger) {}

  ~ChunkRegistryTest() override {
    const Status status = registry.check();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }

  static std::string id_of(char name) { return std::string(64, name); }

  static NewChunk chunk(char name, std::size_t tokens = 4, ChunkType type = ChunkType::kContext) {
    return {.id = id_of(name),
            .type = type,
            .content = std::string(1, name),
            .tokens = std::make_shared<const std::vector<TokenId>>(tokens, 7)};
  }

  std::optional<SegmentId> segment(std::size_t tokens) {
    const SeqId sequence = ledger.sequences().open(std::vector<TokenId>(tokens, 7), false);
    EXPECT_TRUE(ledger.sequences().extend(sequence, static_cast<std::int32_t>(tokens)).ok());
    ledger.sequences().advance(sequence, static_cast<std::int32_t>(tokens));
    const SegmentId sealed = ledger.segments().seal(sequence).value();
    ledger.sequences().close(sequence);
    return sealed;
  }

  // Registered in full: a block for each four tokens.
  void add(NewChunk what) {
    const std::string id = what.id;
    const std::size_t tokens = what.tokens->size();
    const auto begun = registry.begin(std::move(what), VariantKey{});
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    ASSERT_TRUE(registry.variants().end(id, {}, segment(tokens)).ok());
    registry.finish(id);
    pass(1);
  }

  Status begin_variant(const std::string& id, const VariantKey& key) {
    const VariantName name(id, key);
    return registry.variants().begin({&name, 1});
  }

  void pass(std::int64_t seconds) { now += std::chrono::seconds(seconds); }

  // Names of the chunks that are there, by registration.
  std::string names() {
    std::string names;
    for (const Chunk* chunk : registry.list("")) {
      names += chunk->content;
    }
    return names;
  }
  [[nodiscard]] std::int32_t blocks_in_use() const { return ledger.counts().blocks_in_use; }

  WallClock::time_point now{std::chrono::seconds(1'000'000)};
  Ledger ledger{{.num_blocks = 64, .block_tokens = kBlockTokens, .prefix_cache = false}};
  ChunkRegistry registry;
};

TEST_F(ChunkRegistryTest, AChunkIsThereOnceItsRegistrationHasEndedWell) {
  const Chunk* begun = registry.begin(chunk('a', 5), VariantKey{}).value();
  EXPECT_EQ(registry.room().blocks_of(*begun), 2) << "set aside";
  EXPECT_EQ(registry.find(id_of('a')), nullptr);
  EXPECT_THAT(registry.list(""), IsEmpty());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {}, segment(5)).ok());
  EXPECT_EQ(registry.find(id_of('a')), nullptr) << "not finished";
  registry.finish(id_of('a'));
  const Chunk* found = registry.get(id_of('a'), "").value();
  EXPECT_EQ(found->created, now);
  EXPECT_EQ(found->accesses, 0);
  EXPECT_EQ(found->rank, 0xaaaaaaaaaaaaaaaaU);
  EXPECT_EQ(registry.counts("").blocks, 2);
}

TEST_F(ChunkRegistryTest, ARegistrationThatFailsLeavesNothing) {
  ASSERT_TRUE(registry.begin(chunk('a', 5), VariantKey{}).ok());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {}, std::nullopt).ok());
  EXPECT_EQ(registry.counts("").blocks, 0);
  EXPECT_FALSE(registry.get(id_of('a'), "").ok());
  add(chunk('a', 5));
  ASSERT_TRUE(begin_variant(id_of('a'), {.before = "bos"}).ok());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {.before = "bos"}, std::nullopt).ok());
  EXPECT_EQ(names(), "a") << "a variant that fails takes no chunk with it";
  EXPECT_EQ(registry.counts("").blocks, 2);
}

TEST_F(ChunkRegistryTest, AChunkWithoutKVHoldsNoBlocks) {
  ASSERT_TRUE(registry.begin(chunk('c', 40, ChunkType::kQuery), std::nullopt).ok());
  registry.finish(id_of('c'));
  EXPECT_EQ(names(), "c");
  EXPECT_EQ(registry.counts("").blocks, 0);
  registry.merge(chunk('c', 40, ChunkType::kQuery));
  EXPECT_EQ(registry.counts("").hits, 0) << "no prefill was avoided";
}

TEST_F(ChunkRegistryTest, RegisteringAgainIsAUseAndMergesWhatWasSaid) {
  NewChunk first = chunk('a');
  first.metadata_json = R"({"a":1,"b":2})";
  first.ttl_seconds = 50;
  first.priority = 2;
  add(std::move(first));
  pass(40);
  NewChunk again = chunk('a');
  again.metadata_json = R"({"b":3})";
  again.pinned = true;
  EXPECT_TRUE(registry.merge(again));
  const Chunk* known = registry.get(id_of('a'), "").value();
  EXPECT_EQ(known->metadata_json, R"({"a":1,"b":3})");
  EXPECT_TRUE(known->pinned);
  EXPECT_EQ(known->ttl_seconds, 50) << "kept when the new one says nothing";
  EXPECT_EQ(known->priority, 2);
  EXPECT_EQ(known->accesses, 1);
  EXPECT_EQ(known->accessed, now);
  EXPECT_EQ(registry.counts("").hits, 1);
  again.priority = -1;
  EXPECT_TRUE(registry.merge(again)) << "a priority is said of it too";
  EXPECT_EQ(known->priority, -1);
}

TEST_F(ChunkRegistryTest, TextIsFoundByItsNameUntilTheChunkGoes) {
  NewChunk text = chunk('a');
  text.text_id = "text a";
  add(std::move(text));
  EXPECT_EQ(registry.find_text("text a", "a"), registry.find(id_of('a')));
  EXPECT_EQ(registry.find_text("text a", "b"), nullptr);
  EXPECT_EQ(registry.find_text("text b", "a"), nullptr);
  registry.remove(id_of('a'), Removal::kDeleted);
  EXPECT_EQ(registry.find_text("text a", "a"), nullptr);
}

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

TEST_F(ChunkRegistryTest, VariantsAreBegunAllOrNone) {
  add(chunk('a', 4, ChunkType::kSystemPrompt));
  add(chunk('b', 4));
  add(chunk('c', 4));
  add(chunk('d', 8));
  const VariantKey key{.before = id_of('a')};
  const std::vector<VariantName> both = {{id_of('b'), key}, {id_of('c'), key}};
  ASSERT_TRUE(registry.update(id_of('d'), "", {.pinned = true}).ok());
  const Status refused = registry.variants().begin(both);
  ASSERT_FALSE(refused.ok()) << "there is room for one";
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().needed_bytes, 2 * 1024);
  EXPECT_EQ(names(), "abcd");
  EXPECT_EQ(registry.counts("").blocks, 5);
  ASSERT_TRUE(registry.update(id_of('d'), "", {.pinned = false}).ok());
  ASSERT_TRUE(registry.variants().begin(both).ok());
  EXPECT_EQ(names(), "abc");
  EXPECT_EQ(registry.counts("").blocks, 5);
  EXPECT_TRUE(registry.variants().end(id_of('b'), key, segment(4)).ok());
  EXPECT_TRUE(registry.variants().end(id_of('c'), key, std::nullopt).ok());
  registry.variants().drop({id_of('c'), key});
  EXPECT_EQ(registry.counts("").blocks, 4);
  registry.variants().drop({id_of('b'), key});
  EXPECT_EQ(registry.counts("").blocks, 3);
  EXPECT_EQ(registry.find(id_of('b'))->variants.size(), 1);
  EXPECT_EQ(blocks_in_use(), 3);
}

TEST_F(ChunkRegistryTest, VariantsBelongToTheirChunkAndGoWithIt) {
  add(chunk('a', 5));
  ASSERT_TRUE(begin_variant(id_of('a'), {.before = "bos"}).ok());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {.before = "bos"}, segment(5)).ok());
  EXPECT_EQ(registry.room().blocks_of(*registry.find(id_of('a'))), 4);
  EXPECT_EQ(blocks_in_use(), 4);
  EXPECT_TRUE(registry.remove(id_of('a'), Removal::kDeleted));
  EXPECT_FALSE(registry.remove(id_of('a'), Removal::kDeleted));
  EXPECT_EQ(blocks_in_use(), 0);
}

TEST_F(ChunkRegistryTest, BlocksOfADeletedChunkReturnWithItsLastUser) {
  add(chunk('a', 8));
  const SegmentUse use{.segment = registry.find(id_of('a'))->variants.begin()->second};
  const SeqId user = ledger.segments().compose({&use, 1}).value();
  const auto hold = registry.usage().hold(id_of('a'));
  EXPECT_TRUE(registry.remove(id_of('a'), Removal::kDeleted));
  EXPECT_EQ(registry.counts("").blocks, 0);
  EXPECT_EQ(blocks_in_use(), 2);
  add(chunk('a', 8));
  const auto another = registry.usage().hold(id_of('a'));
  registry.usage().release(hold);  // of the chunk that is gone
  EXPECT_EQ(registry.find(id_of('a'))->holders, 1);
  registry.usage().release(another);
  ledger.sequences().close(user);
  EXPECT_EQ(blocks_in_use(), 2);
}

TEST_F(ChunkRegistryTest, KVOfAChunkDeletedMeanwhileIsDropped) {
  add(chunk('a'));
  ASSERT_TRUE(begin_variant(id_of('a'), {.before = "bos"}).ok());
  EXPECT_TRUE(registry.remove(id_of('a'), Removal::kDeleted));
  EXPECT_EQ(registry.counts("").blocks, 0);
  EXPECT_FALSE(registry.variants().end(id_of('a'), {.before = "bos"}, segment(4)).ok());
  EXPECT_EQ(blocks_in_use(), 0);
}

TEST_F(ChunkRegistryTest, WithoutUseForItsTimeAChunkIsGone) {
  NewChunk mortal = chunk('a');
  mortal.ttl_seconds = 10;
  add(std::move(mortal));  // a second passes
  pass(9);
  EXPECT_NE(registry.find(id_of('a')), nullptr) << "exactly at its end";
  registry.usage().use(id_of('a'));
  pass(11);
  const auto gone = registry.get(id_of('a'), "");
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(gone.error().chunk_id, id_of('a'));
  EXPECT_THAT(gone.error().message, HasSubstr("expired 0 s ago"));
  EXPECT_EQ(blocks_in_use(), 0);
  EXPECT_EQ(registry.counts("").evictions, 0);
}

TEST_F(ChunkRegistryTest, PinnedAndHeldOnesDoNotExpire) {
  for (const char name : {'a', 'b'}) {
    NewChunk mortal = chunk(name);
    mortal.ttl_seconds = 10;
    add(std::move(mortal));
  }
  ASSERT_TRUE(registry.update(id_of('a'), "", {.pinned = true}).ok());
  const auto hold = registry.usage().hold(id_of('b'));
  pass(100);
  EXPECT_EQ(names(), "ab");
  registry.usage().release(hold);
  EXPECT_EQ(names(), "a");
  ASSERT_TRUE(registry.update(id_of('a'), "", {.ttl_seconds = std::optional<double>()}).ok());
  ASSERT_TRUE(registry.update(id_of('a'), "", {.pinned = false}).ok());
  EXPECT_EQ(names(), "a") << "it has no end any more";
}

TEST_F(ChunkRegistryTest, ExpiredOnesGoBeforeAnyIsEvicted) {
  add(chunk('a'));
  NewChunk mortal = chunk('b');
  mortal.ttl_seconds = 10;
  mortal.priority = 9;
  add(std::move(mortal));
  add(chunk('c'));
  add(chunk('d'));
  pass(20);
  add(chunk('e'));
  EXPECT_EQ(names(), "acde");
  EXPECT_EQ(registry.counts("").evictions, 0);
}

TEST_F(ChunkRegistryTest, TheLastSystemChunkIsTheOneRegisteredLastThatIsStillThere) {
  EXPECT_EQ(registry.last_system(""), "");
  add(chunk('a', 4, ChunkType::kSystemPrompt));
  NewChunk mortal = chunk('b', 4, ChunkType::kSystemPrompt);
  mortal.ttl_seconds = 10;
  add(std::move(mortal));
  add(chunk('c'));
  EXPECT_EQ(registry.last_system(""), id_of('b'));
  registry.merge(chunk('a', 4, ChunkType::kSystemPrompt));
  EXPECT_EQ(registry.last_system(""), id_of('a'));
  registry.merge(chunk('b', 4, ChunkType::kSystemPrompt));
  EXPECT_EQ(registry.last_system(""), id_of('b'));
  pass(20);
  EXPECT_EQ(registry.last_system(""), id_of('a')) << "b has expired";
  registry.remove(id_of('a'), Removal::kDeleted);
  EXPECT_EQ(registry.last_system(""), "");
}

TEST_F(ChunkRegistryTest, ClearingSparesWhatIsUsedOrComputed) {
  NewChunk pinned = chunk('a', 4, ChunkType::kSystemPrompt);
  pinned.pinned = true;
  add(std::move(pinned));
  add(chunk('b'));
  const auto hold = registry.usage().hold(id_of('b'));
  ASSERT_TRUE(registry.begin(chunk('c'), VariantKey{}).ok());
  EXPECT_EQ(registry.clear("", ChunkType::kContext), 0);
  EXPECT_EQ(registry.clear("", std::nullopt), 1) << "pinned ones too";
  registry.usage().release(hold);
  EXPECT_TRUE(registry.variants().end(id_of('c'), {}, segment(4)).ok());
  registry.finish(id_of('c'));
  EXPECT_EQ(registry.clear("", ChunkType::kQuery), 0);
  EXPECT_EQ(registry.clear("", ChunkType::kContext), 2);
  EXPECT_EQ(blocks_in_use(), 0);
  EXPECT_THAT(registry.fate(id_of('c'), ""), HasSubstr("cleared"));
}

TEST_F(ChunkRegistryTest, UnusedOnesGoByAge) {
  NewChunk pinned = chunk('a');
  pinned.pinned = true;
  add(std::move(pinned));
  add(chunk('b'));
  add(chunk('c'));
  pass(10);
  registry.usage().use(id_of('b'));
  EXPECT_EQ(registry.evict_unused("", 11), 1);
  EXPECT_EQ(names(), "ab");
  EXPECT_EQ(registry.evict_unused("", 0), 1);
  EXPECT_EQ(names(), "a");
  EXPECT_EQ(registry.fate(id_of('c'), ""), "evicted 0 s ago by evict_unused_chunks");
}

TEST_F(ChunkRegistryTest, UpdatingIsNoUseAndRefusesWhatIsWrong) {
  add(chunk('a'));
  const auto before = registry.find(id_of('a'))->accessed;
  EXPECT_EQ(registry.update(id_of('a'), "", {.metadata_json = "[1]"}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(registry.update(id_of('a'), "", {.metadata_json = "{"}).ok());
  for (const double wrong : {0.0, -1.0, std::nan("")}) {
    EXPECT_EQ(
        registry.update(id_of('a'), "", {.metadata_json = R"({"x": 1})", .ttl_seconds = wrong})
            .error()
            .code,
        ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(registry.update(id_of('z'), "", {}).error().code, ErrorCode::kNotFound);
  const Chunk* known = registry.update(id_of('a'), "", {.metadata_json = R"({"y": 2})"}).value();
  EXPECT_EQ(known->metadata_json, R"({"y":2})");
  EXPECT_EQ(known->accessed, before);
  EXPECT_EQ(known->accesses, 0);
}

TEST_F(ChunkRegistryTest, FateOfWhatWasNeverThereIsSaid) {
  EXPECT_EQ(registry.fate(id_of('a'), ""), "never registered");
  add(chunk('a'));
  registry.remove(id_of('a'), Removal::kDeleted);
  pass(7);
  EXPECT_EQ(registry.fate(id_of('a'), ""), "deleted 7 s ago");
}

TEST_F(ChunkRegistryTest, ItsEndGivesBackEveryBlock) {
  {
    ChunkRegistry other({.max_chunks = 4, .max_blocks = 6, .block_bytes = 1}, ledger);
    ASSERT_TRUE(other.begin(chunk('a', 9), VariantKey{}).ok());
    ASSERT_TRUE(other.variants().end(id_of('a'), {}, segment(9)).ok());
    EXPECT_EQ(blocks_in_use(), 3);
  }
  EXPECT_EQ(blocks_in_use(), 0);
}

// A chunk of a tenant: two tenants have no id in common.
class TenantsTest : public ChunkRegistryTest {
 protected:
  TenantsTest() : ChunkRegistryTest(4, 6) {}

  static NewChunk of(const std::string& salt, char name, std::size_t tokens = 4,
                     ChunkType type = ChunkType::kContext) {
    NewChunk made = chunk(name, tokens, type);
    made.salt = salt;
    return made;
  }
  // Registered without KV.
  void add_ids(NewChunk what) {
    const std::string id = what.id;
    ASSERT_TRUE(registry.begin(std::move(what), std::nullopt).ok());
    registry.finish(id);
    pass(1);
  }
  std::string names(const std::string& salt) {
    std::string names;
    for (const Chunk* chunk : registry.list(salt)) {
      names += chunk->content;
    }
    return names;
  }
};

TEST_F(TenantsTest, OnesChunkIsForAnotherAsOneThatNeverWas) {
  add(of("ada", 'a'));
  EXPECT_TRUE(registry.get(id_of('a'), "ada").ok());
  for (const char* const other : {"", "bob"}) {
    EXPECT_EQ(registry.find(id_of('a'), other), nullptr);
    EXPECT_THAT(registry.get(id_of('a'), other).error().message, HasSubstr("never registered"));
    EXPECT_EQ(registry.update(id_of('a'), other, {.pinned = true}).error().code,
              ErrorCode::kNotFound);
    EXPECT_EQ(registry.clear(other, std::nullopt), 0);
    EXPECT_EQ(registry.evict_unused(other, 0), 0);
    EXPECT_EQ(registry.counts(other).blocks, 0);
  }
  EXPECT_EQ(registry.clear("ada", std::nullopt), 1);
  EXPECT_THAT(registry.get(id_of('a'), "ada").error().message, HasSubstr("cleared"));
  EXPECT_THAT(registry.get(id_of('a'), "").error().message, HasSubstr("never registered"));
}

TEST_F(TenantsTest, EachHasASystemChunkOfItsOwnAndATemporaryOneIsNobodys) {
  const ChunkType system = ChunkType::kSystemPrompt;
  add(of("ada", 'a', 4, system));
  add(of("bob", 'b', 4, system));
  NewChunk temporary = of("ada", 'c', 4, system);
  temporary.temporary = true;
  add(temporary);
  EXPECT_EQ(registry.last_system("ada"), id_of('a'));
  EXPECT_EQ(registry.last_system("bob"), id_of('b'));
  EXPECT_EQ(registry.last_system(""), "");
  registry.merge(of("ada", 'c', 4, system));
  EXPECT_EQ(registry.last_system("ada"), id_of('c')) << "registered to stay meanwhile";
}

TEST_F(TenantsTest, TheNumberOfChunksIsEachOnesOwn) {
  for (const char name : {'a', 'b', 'c'}) {
    add_ids(of("ada", name));
  }
  for (const char name : {'p', 'q', 'r', 's', 't', 'u'}) {
    add_ids(of("bob", name));
  }
  EXPECT_EQ(names("ada"), "abc");
  EXPECT_EQ(names("bob"), "rstu");
  EXPECT_EQ(registry.counts("bob").evictions, 2);
  EXPECT_EQ(registry.counts("ada").evictions, 0);
}

TEST_F(TenantsTest, WhoHoldsMostGivesWayAndNobodyBelowAnEqualShare) {
  add(of("ada", 'a'));
  add(of("ada", 'b'));
  add(of("bob", 'p'));
  add(of("bob", 'q', 8));
  add(of("bob", 'r'));  // two of ada's, four of bob's, six in all
  add(of("bob", 's'));
  EXPECT_EQ(names("ada"), "ab") << "bob holds most";
  EXPECT_EQ(names("bob"), "qrs");
  add(of("ada", 'c'));
  EXPECT_EQ(names("ada"), "abc") << "up to her share of three";
  EXPECT_EQ(names("bob"), "rs");
  add(of("ada", 'd'));
  EXPECT_EQ(names("ada"), "abcd") << "there was room";
  add(of("bob", 't'));
  EXPECT_EQ(names("bob"), "rst") << "and she holds more than her share";
  EXPECT_EQ(names("ada"), "bcd");
}

TEST_F(TenantsTest, NobodyIsEvictedForOneThatCannotFit) {
  add(of("ada", 'a', 12));
  ASSERT_TRUE(registry.update(id_of('a'), "ada", {.pinned = true}).ok());
  add(of("bob", 'p', 8));
  const Status refused = registry.room().make_room({.salt = "cleo", .chunks = 1, .blocks = 4});
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(names("ada") + names("bob"), "ap");
}

}  // namespace
}  // namespace quire::kv
