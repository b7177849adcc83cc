#include "quire/kv_store/checkpoint_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints()
      : pool_(random_pool(small_geometry(), 32, 51)),
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

  // Blocks [first, first + count) of the pool, 4 tokens each but for the last one. Equal blocks
  // behind equal ones are the same KV.
  LiveSequence sequence(const std::string& name, std::int32_t first, int count,
                        int last = 4) const {
    LiveSequence made{.name = name,
                      .metadata_json = R"({"sampler":7})",
                      .fingerprint = fingerprint_of(1),
                      .kernels = "any"};
    LiveRun& run = made.runs.emplace_back();
    for (std::int32_t i = 0; i < count; ++i) {
      const auto tokens = run_of(i + 1 < count ? 4 : last, 0, 100 * (first + i)).tokens;
      run.run.tokens.insert(run.run.tokens.end(), tokens.begin(), tokens.end());
      run.blocks.push_back({first + i});
    }
    return made;
  }

  // Blocks from `first` on of one run, read back.
  void expect_run(const CheckpointManager& checkpoints, const SavedSequence& saved, std::size_t run,
                  const LiveRun& live, std::size_t first) {
    PagedPool to = random_pool(pool_.geometry(), 32, 99);
    std::vector<BlockId> targets;
    for (std::size_t i = first; i < live.blocks.size(); ++i) {
      targets.push_back({static_cast<std::int32_t>(31 - i)});
    }
    const std::vector<BlockId> sources(live.blocks.begin() + static_cast<std::ptrdiff_t>(first),
                                       live.blocks.end());
    const auto first_block = static_cast<std::int32_t>(first);
    ASSERT_TRUE(checkpoints.read(saved, run, first_block, targets, to).ok());
    const std::size_t tokens = live.run.tokens.size() - 4 * first;
    EXPECT_EQ(kv_bytes(to, targets, tokens), kv_bytes(pool_, sources, tokens));
  }

  void expect_saved(const CheckpointManager& checkpoints, const SavedSequence& saved,
                    const LiveSequence& live) {
    const auto read = checkpoints.tokens_of(saved);
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(read->runs.size(), live.runs.size());
    EXPECT_EQ(read->kernels, live.kernels);
    EXPECT_EQ(read->follows_from_tokens, live.follows_from_tokens);
    for (std::size_t run = 0; run < live.runs.size(); ++run) {
      EXPECT_EQ(read->runs[run].run.tokens, live.runs[run].run.tokens);
      EXPECT_EQ(read->runs[run].run.start_position, live.runs[run].run.start_position);
      for (std::size_t first = 0; first < live.runs[run].blocks.size(); first += 3) {
        expect_run(checkpoints, saved, run, live.runs[run], first);
      }
    }
  }

  static std::vector<std::string> names(const Result<std::vector<Checkpoint>>& checkpoints) {
    std::vector<std::string> names;
    for (const Checkpoint& checkpoint : *checkpoints) {
      names.push_back(checkpoint.name);
    }
    return names;
  }

  [[nodiscard]] std::int64_t num_objects() const {
    std::int64_t objects = 0;
    for (const auto& file :
         std::filesystem::recursive_directory_iterator(folder_.path() / "store" / "objects")) {
      objects += file.path().extension() == ".qkv" ? 1 : 0;
    }
    return objects;
  }

  void damage(const ObjectRange& part) {
    const auto path =
        folder_.path() / "store" / "objects" / part.object.substr(0, 2) / (part.object + ".qkv");
    auto bytes = file_bytes_of(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 4);
    write_bytes(path, bytes);
  }

  TemporaryFolder folder_;
  PagedPool pool_;
  std::int64_t ahead_ms_ = 0;
  Result<Store> store_;
};

TEST_F(Checkpoints, SayWhatWasSavedAndGiveItBack) {
  CheckpointManager checkpoints = manager();
  LiveSequence composed = sequence("composed", 8, 2, 3);
  composed.follows_from_tokens = false;
  composed.runs.push_back(sequence("", 12, 3, 1).runs.front());
  composed.runs.back().run.start_position = 40;
  const std::vector<LiveSequence> all = {
      sequence("a", 0, 3), sequence("b", 4, 2, 1), composed, {.name = "empty"}};
  const auto saved = checkpoints.save("", all, pool_);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_EQ(saved->name, "checkpoint-1");
  EXPECT_EQ(saved->written_objects, 1 + 2 + 4);
  EXPECT_EQ(saved->entry.tokens, 12 + 5 + 7 + 9);
  const auto latest = checkpoints.latest();
  ASSERT_TRUE(latest.ok());
  ASSERT_EQ(latest->sequences.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(latest->sequences[i].name, all[i].name);
    EXPECT_EQ(latest->sequences[i].metadata_json, all[i].metadata_json);
    expect_saved(checkpoints, latest->sequences[i], all[i]);
  }
}

TEST_F(Checkpoints, WriteOnlyTheBlocksThatAreNew) {
  CheckpointManager checkpoints = manager({.keep = 1});
  const auto first = checkpoints.save("", {{sequence("a", 0, 10)}}, pool_);
  ASSERT_TRUE(first.ok());
  const auto second = manager({.keep = 1}).save("", {{sequence("a", 0, 11)}}, pool_);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->written_objects, 1);
  EXPECT_LT(second->written_bytes * 2, first->written_bytes);
  const auto third = checkpoints.save("", {{sequence("a", 0, 11)}}, pool_);
  EXPECT_EQ(third->written_bytes, 0);
  EXPECT_EQ(third->sequences[0].parts, second->sequences[0].parts);
  const auto tail = checkpoints.save("", {{sequence("a", 0, 12, 1)}}, pool_);
  EXPECT_EQ(tail->written_objects, 1);
  const auto grown = checkpoints.save("", {{sequence("a", 0, 12, 3)}}, pool_);
  EXPECT_EQ(grown->written_objects, 1) << "the block that was not full";
  EXPECT_EQ(num_objects(), 3) << "the tail of before went with its checkpoint";
  expect_saved(checkpoints, grown->sequences[0], sequence("a", 0, 12, 3));
}

TEST_F(Checkpoints, BaseAndIncrementsEqualAFullSave) {
  CheckpointManager step = manager({.series = "step", .keep = 1});
  for (int blocks = 1; blocks <= 24; ++blocks) {
    for (const int last : {2, 4}) {
      ASSERT_TRUE(step.save("", {{sequence("a", 0, blocks, last)}}, pool_).ok());
    }
  }
  const auto stepwise = step.latest();
  EXPECT_EQ(stepwise->sequences[0].parts.size(), 24U);
  CheckpointManager full = manager({.series = "full"});
  const auto whole = full.save("", {{sequence("a", 0, 24)}}, pool_);
  ASSERT_EQ(whole->sequences[0].parts.size(), 1U);
  expect_saved(step, stepwise->sequences[0], sequence("a", 0, 24));
  expect_saved(full, whole->sequences[0], sequence("a", 0, 24));
  const auto compacted = step.compact(stepwise->name);
  ASSERT_TRUE(compacted.ok()) << compacted.error().message;
  EXPECT_EQ(compacted->sequences[0].parts, whole->sequences[0].parts);
  EXPECT_EQ(compacted->number, stepwise->number);
  EXPECT_EQ(compacted->entry.created_ms, stepwise->entry.created_ms);
  EXPECT_EQ(compacted->written_bytes, 0) << "the other series has it";
  expect_saved(step, compacted->sequences[0], sequence("a", 0, 24));
  EXPECT_EQ(step.compact("none").error().code, ErrorCode::kNotFound);
}

TEST_F(Checkpoints, OfSequencesThatBeginAlikeTheBeginningIsWrittenOnce) {
  CheckpointManager checkpoints = manager();
  LiveSequence fork = sequence("b", 0, 12);
  const LiveSequence other = sequence("", 20, 2);
  fork.runs[0].run.tokens.insert(fork.runs[0].run.tokens.end(), other.runs[0].run.tokens.begin(),
                                 other.runs[0].run.tokens.end());
  fork.runs[0].blocks.insert(fork.runs[0].blocks.end(), {{20}, {21}});
  const std::vector<LiveSequence> all = {sequence("a", 0, 18), fork};
  const auto saved = checkpoints.save("", all, pool_);
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->written_objects, 3);
  for (std::size_t i = 0; i < all.size(); ++i) {
    expect_saved(checkpoints, saved->sequences[i], all[i]);
  }
  const auto compacted = checkpoints.compact(saved->name);
  EXPECT_EQ(compacted->written_bytes, 0);
  EXPECT_EQ(compacted->entry.parts, saved->entry.parts);
}

TEST_F(Checkpoints, NamesSayWhatTheKVIs) {
  const LiveSequence same = sequence("a", 0, 2);
  const auto name = [&](const LiveSequence& of, const std::string& tenant = "") {
    return SavedRangeNames(of, tenant, pool_).name(of.runs.size() - 1, 0, 8);
  };
  EXPECT_EQ(name(same), name(sequence("b", 0, 2)));
  std::set<std::string> names = {name(same), name(same, "t"), name(sequence("a", 1, 2))};
  LiveSequence changed = same;
  changed.kernels = "others";
  names.insert(name(changed));
  changed = same;
  changed.fingerprint = fingerprint_of(2);
  names.insert(name(changed));
  changed = same;
  changed.runs[0].run.start_position = 4;
  names.insert(name(changed));
  changed = same;
  changed.runs.insert(changed.runs.begin(), sequence("", 5, 1).runs[0]);
  names.insert(name(changed));
  changed = same;
  changed.follows_from_tokens = false;
  names.insert(name(changed));
  changed.runs[0].blocks[1] = {9};
  names.insert(name(changed));
  EXPECT_EQ(names.size(), 9U);
  const PagedPool larger = random_pool(small_geometry(tensor::DType::kFloat32), 4, 1);
  EXPECT_NE(SavedRangeNames(same, "", larger).name(0, 0, 8), name(same));
}

TEST_F(Checkpoints, SaveChosenSequencesOnlyIfAsked) {
  CheckpointManager checkpoints = manager();
  const std::vector<LiveSequence> all = {sequence("a", 0, 1), sequence("b", 1, 1)};
  const std::vector<std::string> only = {"b"}, unknown = {"c"};
  const auto saved = checkpoints.save("", all, pool_, only);
  ASSERT_TRUE(saved.ok());
  ASSERT_EQ(saved->sequences.size(), 1U);
  EXPECT_EQ(saved->sequences[0].name, "b");
  EXPECT_EQ(saved->written_objects, 1);
  EXPECT_EQ(checkpoints.save("", all, pool_, unknown).error().code, ErrorCode::kNotFound);
  const std::vector<LiveSequence> twice = {sequence("a", 0, 1), sequence("a", 1, 1)};
  EXPECT_EQ(checkpoints.save("", twice, pool_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(names(checkpoints.list()).size(), 1U);
}

TEST_F(Checkpoints, ExactlyTheNewestAreKeptAndPinnedOnesBeside) {
  CheckpointManager checkpoints = manager({.keep = 2});
  const auto first = checkpoints.save("first", {{sequence("a", 0, 1)}}, pool_);
  ASSERT_TRUE(store_->entries().pin(first->entry.key, "", true).ok());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 2 + i)}}, pool_).ok());
  }
  EXPECT_THAT(names(checkpoints.list()), ElementsAre("checkpoint-5", "checkpoint-4", "first"));
  EXPECT_TRUE(*checkpoints.remove("checkpoint-5"));
  EXPECT_FALSE(*checkpoints.remove("checkpoint-5"));
  EXPECT_EQ(checkpoints.find("checkpoint-5").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(*checkpoints.prune(0), 1);
  EXPECT_THAT(names(checkpoints.list()), ElementsAre("first"));
  ASSERT_TRUE(checkpoints.latest().ok());
}

TEST_F(Checkpoints, WithoutANameReplaceNoOther) {
  CheckpointManager checkpoints = manager();
  const LiveSequence first = sequence("a", 0, 3), second = sequence("a", 8, 2);
  ASSERT_TRUE(checkpoints.save("checkpoint-2", {&first, 1}, pool_).ok());
  const auto saved = checkpoints.save("", {&second, 1}, pool_);
  ASSERT_TRUE(saved.ok());
  EXPECT_THAT(names(checkpoints.list()), ElementsAre("checkpoint-3", "checkpoint-2"));
  const auto kept = checkpoints.find("checkpoint-2");
  ASSERT_TRUE(kept.ok());
  expect_saved(checkpoints, kept->sequences.front(), first);
}

TEST_F(Checkpoints, OfWritersAtTheSameTimeAreAllThere) {
  constexpr int kEach = 20;
  const auto write = [this](std::int32_t first_block) {
    Result<Store> store = Store::open(folder_.path() / "store", {.write = {.sync = false}});
    ASSERT_TRUE(store.ok());
    auto checkpoints = CheckpointManager::create(*store, {.keep = 0});
    ASSERT_TRUE(checkpoints.ok());
    for (int i = 0; i < kEach; ++i) {
      const LiveSequence live = sequence("a", first_block + i % 8, 2);
      const auto saved = checkpoints->save("", {&live, 1}, pool_);
      ASSERT_TRUE(saved.ok()) << saved.error().message;
    }
  };
  std::thread other([&] { write(0); });
  write(16);
  other.join();
  EXPECT_EQ(manager().list()->size(), 2 * kEach);
}

TEST_F(Checkpoints, OfOtherSeriesAndTenantsAreLeftAlone) {
  CheckpointManager one = manager({.series = "one", .keep = 1});
  CheckpointManager two = manager({.series = "two", .keep = 1});
  CheckpointManager other = manager({.series = "one", .tenant = "t", .keep = 1});
  for (CheckpointManager* checkpoints : {&one, &two, &other}) {
    ASSERT_TRUE(checkpoints->save("x", {{sequence("a", 0, 1)}}, pool_).ok());
    ASSERT_TRUE(checkpoints->save("y", {{sequence("a", 0, 1)}}, pool_).ok());
  }
  for (CheckpointManager* checkpoints : {&one, &two, &other}) {
    EXPECT_THAT(names(checkpoints->list()), ElementsAre("y"));
  }
}

TEST_F(Checkpoints, TheLatestIsTheNewestThatIsWhole) {
  CheckpointManager checkpoints = manager();
  EXPECT_EQ(checkpoints.latest().error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 1)}}, pool_).ok());
  const auto second = checkpoints.save("", {{sequence("a", 0, 2)}}, pool_);
  ASSERT_TRUE(second.ok());
  damage(second->entry.parts[1]);
  EXPECT_EQ(checkpoints.latest()->name, "checkpoint-1");
  damage(second->entry.parts[0]);
  const auto none = checkpoints.latest();
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("2 are damaged"));
  ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 2)}}, pool_).ok());
  EXPECT_EQ(checkpoints.latest()->name, "checkpoint-3") << "saving mends the objects";
}

TEST_F(Checkpoints, AreDueByNewTokensAndByTime) {
  const CheckpointManager tokens = manager({.every_tokens = 3});
  EXPECT_FALSE(tokens.due(0));
  EXPECT_FALSE(tokens.due(2));
  EXPECT_TRUE(tokens.due(3));
  CheckpointManager time = manager({.every_ms = 60'000});
  EXPECT_FALSE(time.due(1000));
  ahead_ms_ += 61'000;
  EXPECT_FALSE(time.due(0)) << "nothing has changed";
  EXPECT_TRUE(time.due(1));
  ASSERT_TRUE(time.save("", {}, pool_).ok());
  EXPECT_FALSE(time.due(1));
  EXPECT_FALSE(manager().due(1000));
}

TEST_F(Checkpoints, OptionsOutOfRangeAreNamed) {
  EXPECT_THAT(CheckpointManager::create(*store_, {.keep = -1}).error().message,
              HasSubstr("keep is -1"));
  EXPECT_THAT(CheckpointManager::create(*store_, {.every_ms = -1}).error().message,
              HasSubstr("every_ms is -1"));
}

TEST_F(Checkpoints, AMalformedOneIsReportedAndBlocksNoOther) {
  CheckpointManager checkpoints = manager();
  ASSERT_TRUE(checkpoints.save("", {{sequence("a", 0, 1)}}, pool_).ok());
  const auto bad = checkpoints.save("bad", {{sequence("a", 0, 2)}}, pool_);
  ASSERT_TRUE(bad.ok());
  for (const char* metadata :
       {"{}", R"({"sequences":3})", R"({"sequences":[1]})", R"({"number":"x","sequences":[]})",
        R"({"sequences":[{"name":"a","parts":9}]})", R"({"sequences":[{"parts":-1}]})",
        R"({"sequences":[{"parts":0,"runs":7}]})", R"({"sequences":[{"parts":0,"runs":[[1,0]]}]})",
        R"({"sequences":[{"parts":0,"runs":[[0,0]]}]})",
        R"({"sequences":[{"parts":0,"runs":[["x",0]]}]})"}) {
    SCOPED_TRACE(metadata);
    StoreEntry entry = bad->entry;
    entry.metadata_json = metadata;
    ASSERT_TRUE(store_->entries().put(entry).ok());
    std::vector<Error> malformed;
    EXPECT_THAT(names(checkpoints.list(&malformed)), ElementsAre("checkpoint-1"));
    ASSERT_EQ(malformed.size(), 1U);
    EXPECT_EQ(malformed.front().code, ErrorCode::kCorrupt);
    EXPECT_THAT(malformed.front().message, HasSubstr(R"(checkpoint "bad": )"));
    EXPECT_EQ(checkpoints.find("bad").error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(checkpoints.latest()->name, "checkpoint-1");
  }
  EXPECT_THAT(names(manager({.series = "other"}).list()), ElementsAre());
  EXPECT_TRUE(checkpoints.save("", {{sequence("a", 0, 3)}}, pool_).ok());
  EXPECT_EQ(*checkpoints.prune(0), 2) << "what it does not know it does not forget";
  const auto none = checkpoints.latest();
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message, HasSubstr(R"(1 are damaged (checkpoint "bad")"));
  EXPECT_TRUE(*checkpoints.remove("bad"));
}

// Equal KV is one object: what one manager forgets the other is about to name.
TEST_F(Checkpoints, ManagersThatForgetWhatOthersSaveLoseNothing) {
  const auto save_often = [&](const std::string& series) {
    Store store = Store::open(folder_.path() / "store", {.write = {.sync = false}}).value();
    CheckpointManager own = CheckpointManager::create(store, {.series = series, .keep = 1}).value();
    for (int round = 0; round < 40; ++round) {
      const std::vector<LiveSequence> live = {sequence("a", round % 3 * 8, 8)};
      const auto saved = own.save("", live, pool_);
      ASSERT_TRUE(saved.ok()) << saved.error().message;
      EXPECT_EQ(own.list()->size(), 1);
      expect_saved(own, saved->sequences[0], live[0]);
    }
  };
  std::jthread other([&] { save_often("other"); });
  save_often("own");
}

// Each may go between being listed and being read.
TEST_F(Checkpoints, TheLatestIsThereWhileAnotherProcessSavesAndForgets) {
  const auto save = [&](Store& store, int round) {
    CheckpointManager own = CheckpointManager::create(store, {.keep = 1}).value();
    const auto saved = own.save("", {{sequence("a", round % 2 * 16, 8)}}, pool_);
    ASSERT_TRUE(saved.ok()) << saved.error().message;
  };
  save(*store_, 0);
  std::atomic<bool> done = false;
  std::jthread writer([&] {
    Store store = Store::open(folder_.path() / "store", {.write = {.sync = false}}).value();
    for (int round = 1; round < 300; ++round) {
      save(store, round);
    }
    done = true;
  });
  for (std::int64_t number = 0; !done;) {
    const auto latest = manager().latest();
    ASSERT_TRUE(latest.ok()) << latest.error().message;
    EXPECT_GE(latest->number, number);
    number = latest->number;
  }
}

}  // namespace
}  // namespace quire::kv_store
