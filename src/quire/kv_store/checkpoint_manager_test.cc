#include "quire/kv_store/checkpoint_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "quire/kv_store/entry.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints()
      : shelves_(random_shelves(small_geometry(), 32, 51)),
        store_(Store::open(folder_.path() / "store", {.write = {.sync = false}, .now_ms = [this] {
                                                        return system_now_ms() + ahead_ms_;
                                                      }})) {
    EXPECT_TRUE(store_.ok());
  }

  CheckpointManager manager(CheckpointOptions options = {}) {
    auto manager = CheckpointManager::create(*store_, std::move(options));
    EXPECT_TRUE(manager.ok());
    return std::move(manager).value();
  }

  CheckpointPiece piece(std::int32_t block) const {
    return {.object = object_hash(block),
            .content = {.fingerprint = fingerprint_of(1),
                        .geometry = shelves_.geometry(),
                        .runs = {run_of(4, 0, 100 * block)}},
            .blocks = {ids({block})}};
  }

  CheckpointSequence sequence(const std::string& name, std::int32_t first, int count) const {
    CheckpointSequence made{.name = name, .metadata_json = R"({"sampler":7})"};
    for (std::int32_t i = 0; i < count; ++i) {
      made.pieces.push_back(piece(first + i));
    }
    return made;
  }

  static std::vector<std::string> names(const Result<std::vector<Checkpoint>>& checkpoints) {
    std::vector<std::string> names;
    for (const Checkpoint& checkpoint : *checkpoints) {
      names.push_back(checkpoint.name);
    }
    return names;
  }

  void damage(std::int32_t block) {
    const std::string hash = object_hash(block);
    const auto path = folder_.path() / "store" / "objects" / hash.substr(0, 2) / (hash + ".qkv");
    auto bytes = file_bytes_of(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 4);
    write_bytes(path, bytes);
  }

  TemporaryFolder folder_;
  PagedStore shelves_;
  std::int64_t ahead_ms_ = 0;
  Result<Store> store_;
};

TEST_F(Checkpoints, SayWhatWasSavedAndGiveItBack) {
  CheckpointManager checkpoints = manager();
  const std::vector<CheckpointSequence> all = {
      sequence("a", 0, 3), sequence("b", 1, 2), {.name = "empty"}};
  const auto saved = checkpoints.save("", all, shelves_);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_EQ(saved->name, "checkpoint-1");
  EXPECT_EQ(saved->written_objects, 3);
  const auto latest = checkpoints.latest();
  ASSERT_TRUE(latest.ok());
  ASSERT_EQ(latest->sequences.size(), 3U);
  EXPECT_EQ(latest->sequences[0].name, "a");
  EXPECT_EQ(latest->sequences[0].metadata_json, R"({"sampler":7})");
  ASSERT_EQ(latest->sequences[0].parts.size(), 3U);
  ASSERT_EQ(latest->sequences[1].parts.size(), 2U);
  EXPECT_EQ(latest->sequences[1].parts[0].object, object_hash(1));
  EXPECT_EQ(latest->sequences[1].parts[0].tokens, 4);
  EXPECT_TRUE(latest->sequences[2].parts.empty());
  EXPECT_EQ(latest->entry.tokens, 20);
}

TEST_F(Checkpoints, WriteOnlyWhatIsNew) {
  CheckpointManager checkpoints = manager();
  const auto first = checkpoints.save("", {{sequence("a", 0, 10)}}, shelves_);
  ASSERT_TRUE(first.ok());
  const auto second = checkpoints.save("", {{sequence("a", 0, 11)}}, shelves_);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->written_objects, 1);
  EXPECT_EQ(second->written_bytes * 10, first->written_bytes);
  const auto third = checkpoints.save("", {{sequence("a", 0, 11)}}, shelves_);
  EXPECT_EQ(third->written_bytes, 0);
  EXPECT_EQ(third->sequences[0].parts, second->sequences[0].parts);
}

TEST_F(Checkpoints, SaveChosenSequencesOnlyIfAsked) {
  CheckpointManager checkpoints = manager();
  const std::vector<CheckpointSequence> all = {sequence("a", 0, 1), sequence("b", 1, 1)};
  const std::vector<std::string> only = {"b"}, unknown = {"c"};
  const auto saved = checkpoints.save("", all, shelves_, only);
  ASSERT_TRUE(saved.ok());
  ASSERT_EQ(saved->sequences.size(), 1U);
  EXPECT_EQ(saved->sequences[0].name, "b");
  EXPECT_EQ(saved->written_objects, 1);
  EXPECT_EQ(checkpoints.save("", all, shelves_, unknown).error().code, ErrorCode::kNotFound);
  const std::vector<CheckpointSequence> twice = {sequence("a", 0, 1), sequence("a", 1, 1)};
  EXPECT_EQ(checkpoints.save("", twice, shelves_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(names(checkpoints.list()).size(), 1U);
}

TEST_F(Checkpoints, ExactlyTheNewestAreKeptAndPinnedOnesBeside) {
  CheckpointManager checkpoints = manager({.keep = 2});
  const auto first = checkpoints.save("first", {{sequence("a", 0, 1)}}, shelves_);
  ASSERT_TRUE(store_->pin(first->entry.key, "", true).ok());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 2 + i)}}, shelves_).ok());
  }
  EXPECT_THAT(names(checkpoints.list()), ElementsAre("checkpoint-5", "checkpoint-4", "first"));
  EXPECT_TRUE(*checkpoints.remove("checkpoint-5"));
  EXPECT_FALSE(*checkpoints.remove("checkpoint-5"));
  EXPECT_EQ(checkpoints.find("checkpoint-5").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(*checkpoints.prune(0), 1);
  EXPECT_THAT(names(checkpoints.list()), ElementsAre("first"));
  ASSERT_TRUE(checkpoints.latest().ok());
}

TEST_F(Checkpoints, OfOtherSeriesAndTenantsAreLeftAlone) {
  CheckpointManager one = manager({.series = "one", .keep = 1});
  CheckpointManager two = manager({.series = "two", .keep = 1});
  CheckpointManager other = manager({.series = "one", .tenant = "t", .keep = 1});
  for (CheckpointManager* checkpoints : {&one, &two, &other}) {
    ASSERT_TRUE(checkpoints->save("x", {{sequence("a", 0, 1)}}, shelves_).ok());
    ASSERT_TRUE(checkpoints->save("y", {{sequence("a", 0, 1)}}, shelves_).ok());
  }
  for (CheckpointManager* checkpoints : {&one, &two, &other}) {
    EXPECT_THAT(names(checkpoints->list()), ElementsAre("y"));
  }
}

TEST_F(Checkpoints, TheLatestIsTheNewestThatIsWhole) {
  CheckpointManager checkpoints = manager();
  EXPECT_EQ(checkpoints.latest().error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 1)}}, shelves_).ok());
  ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 2)}}, shelves_).ok());
  damage(1);
  EXPECT_EQ(checkpoints.latest()->name, "checkpoint-1");
  damage(0);
  const auto none = checkpoints.latest();
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("2 are damaged"));
  ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 2)}}, shelves_).ok());
  EXPECT_EQ(checkpoints.latest()->name, "checkpoint-3") << "saving mends the objects";
}

TEST_F(Checkpoints, AreDueByCallsAndByTime) {
  CheckpointManager calls = manager({.every_calls = 3});
  EXPECT_FALSE(calls.due());
  EXPECT_FALSE(calls.due());
  EXPECT_TRUE(calls.due());
  EXPECT_TRUE(calls.due()) << "until it is saved";
  ASSERT_TRUE(calls.save("", {}, shelves_).ok());
  EXPECT_FALSE(calls.due());
  CheckpointManager time = manager({.every_ms = 60'000});
  EXPECT_FALSE(time.due());
  ahead_ms_ += 61'000;
  EXPECT_TRUE(time.due());
  ASSERT_TRUE(time.save("", {}, shelves_).ok());
  EXPECT_FALSE(time.due());
  EXPECT_FALSE(manager().due());
}

TEST_F(Checkpoints, OptionsOutOfRangeAreNamed) {
  EXPECT_THAT(CheckpointManager::create(*store_, {.keep = -1}).error().message,
              HasSubstr("keep is -1"));
  EXPECT_THAT(CheckpointManager::create(*store_, {.every_ms = -1}).error().message,
              HasSubstr("every_ms is -1"));
}

TEST_F(Checkpoints, MetadataOfAStrangerIsAnError) {
  for (const char* metadata :
       {"{}", R"({"sequences":3})", R"({"sequences":[1]})",
        R"({"sequences":[{"name":"a","parts":9}]})", R"({"sequences":[{"parts":-1}]})"}) {
    ASSERT_TRUE(
        store_
            ->put_entry(
                {.key = test_hash("x"), .kind = EntryKind::kCheckpoint, .metadata_json = metadata})
            .ok());
    EXPECT_EQ(manager().list().error().code, ErrorCode::kCorrupt) << metadata;
  }
}

}  // namespace
}  // namespace quire::kv_store
