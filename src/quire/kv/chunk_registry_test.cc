// The rules of chunk_registry.h, one by one, with a clock of the test's own.
#include "quire/kv/chunk_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry_scene.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(ChunkRegistryTest, AChunkIsThereOnceItsRegistrationHasEndedWell) {
  const Chunk* begun = registry.begin(chunk('a', 5), VariantKey{}).value();
  EXPECT_EQ(registry.room().bytes_of(*begun), 2 * kBlockBytes) << "set aside";
  EXPECT_EQ(registry.find(id_of('a')), nullptr);
  EXPECT_THAT(registry.list(""), IsEmpty());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {}, segment(5)).ok());
  EXPECT_EQ(registry.find(id_of('a')), nullptr) << "not finished";
  registry.finish(id_of('a'));
  const Chunk* found = registry.get(id_of('a'), "").value();
  EXPECT_EQ(found->created, now);
  EXPECT_EQ(found->accesses, 0);
  EXPECT_EQ(found->rank, 0xaaaaaaaaaaaaaaaaU);
  EXPECT_EQ(registry.counts("").bytes, 2 * kBlockBytes);
}

TEST_F(ChunkRegistryTest, ARegistrationThatFailsLeavesNothing) {
  ASSERT_TRUE(registry.begin(chunk('a', 5), VariantKey{}).ok());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {}, std::nullopt).ok());
  EXPECT_EQ(registry.counts("").bytes, 0);
  EXPECT_FALSE(registry.get(id_of('a'), "").ok());
  add(chunk('a', 5));
  ASSERT_TRUE(begin_variant(id_of('a'), {.before = "bos"}).ok());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {.before = "bos"}, std::nullopt).ok());
  EXPECT_EQ(names(), "a") << "a variant that fails takes no chunk with it";
  EXPECT_EQ(registry.counts("").bytes, 2 * kBlockBytes);
}

TEST_F(ChunkRegistryTest, AChunkWithoutKVHoldsNoBlocks) {
  ASSERT_TRUE(registry.begin(chunk('c', 40, ChunkType::kQuery), std::nullopt).ok());
  registry.finish(id_of('c'));
  EXPECT_EQ(names(), "c");
  EXPECT_EQ(registry.counts("").bytes, 0);
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
  EXPECT_EQ(registry.counts("").bytes, 5 * kBlockBytes);
  ASSERT_TRUE(registry.update(id_of('d'), "", {.pinned = false}).ok());
  ASSERT_TRUE(registry.variants().begin(both).ok());
  EXPECT_EQ(names(), "abc");
  EXPECT_EQ(registry.counts("").bytes, 5 * kBlockBytes);
  EXPECT_TRUE(registry.variants().end(id_of('b'), key, segment(4)).ok());
  EXPECT_TRUE(registry.variants().end(id_of('c'), key, std::nullopt).ok());
  registry.variants().drop({id_of('c'), key});
  EXPECT_EQ(registry.counts("").bytes, 4 * kBlockBytes);
  registry.variants().drop({id_of('b'), key});
  EXPECT_EQ(registry.counts("").bytes, 3 * kBlockBytes);
  EXPECT_EQ(registry.find(id_of('b'))->variants.size(), 1);
  EXPECT_EQ(blocks_in_use(), 3);
}

TEST_F(ChunkRegistryTest, VariantsBelongToTheirChunkAndGoWithIt) {
  add(chunk('a', 5));
  ASSERT_TRUE(begin_variant(id_of('a'), {.before = "bos"}).ok());
  EXPECT_TRUE(registry.variants().end(id_of('a'), {.before = "bos"}, segment(5)).ok());
  EXPECT_EQ(registry.room().bytes_of(*registry.find(id_of('a'))), 4 * kBlockBytes);
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
  EXPECT_EQ(registry.counts("").bytes, 0);
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
  EXPECT_EQ(registry.counts("").bytes, 0);
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
    ChunkRegistry other({.max_chunks = 4, .max_blocks = 6}, ledger);
    ASSERT_TRUE(other.begin(chunk('a', 9), VariantKey{}).ok());
    ASSERT_TRUE(other.variants().end(id_of('a'), {}, segment(9)).ok());
    EXPECT_EQ(blocks_in_use(), 3);
  }
  EXPECT_EQ(blocks_in_use(), 0);
}

}  // namespace
}  // namespace quire::kv
