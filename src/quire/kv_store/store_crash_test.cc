// Writers that die, fill the disk or meet each other: whatever was put before stays whole.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/crash_test_support.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/test_support.h"
#include "quire/kv_store/trace_test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// Three entries, and a process that adds one, replaces, touches, removes and collects.
class StoreCrashWithEntries : public StoreCrash {
 protected:
  StoreCrashWithEntries() {
    auto store = Store::open(path_);
    EXPECT_TRUE(store.ok() && put(*store, "kept", {0, 1}) && put(*store, "replaced", {1, 2}) &&
                put(*store, "removed", {2, 3}));
  }

  bool work() {
    auto store = Store::open(path_, {.grace_ms = 0});
    return store.ok() && put(*store, "new", {0, 4, 5}) && put(*store, "replaced", {6}) &&
           store->entries().touch(test_hash("kept"), "").ok() &&
           store->remover().remove(test_hash("removed"), "").ok() && store->collector().gc().ok();
  }

  // Expects the store that a process left at `path` when it died to hold the old or the new.
  void expect_old_or_new(const std::filesystem::path& path) {
    auto store = Store::open(path, {.grace_ms = 0});
    ASSERT_TRUE(store.ok()) << store.error().message;
    EXPECT_EQ(read_back(*store, "kept"), (Objects{0, 1}));
    const Objects replaced = read_back(*store, "replaced"), added = read_back(*store, "new"),
                  removed = read_back(*store, "removed");
    EXPECT_TRUE(replaced == (Objects{1, 2}) || replaced == (Objects{6}));
    EXPECT_TRUE(added.empty() || added == (Objects{0, 4, 5}));
    EXPECT_TRUE(removed.empty() || removed == (Objects{2, 3}));
    expect_no_damage(*store);
    const auto collected = store->collector().gc();
    ASSERT_TRUE(collected.ok()) << "a lock was left behind? " << collected.error().message;
    EXPECT_EQ(read_back(*store, "kept"), (Objects{0, 1}));
  }
};

TEST_F(StoreCrashWithEntries, NothingThatWasThereIsLostWhicheverCallIsTheLast) {
  const auto left = folder_.path() / "left";
  int calls = 0;
  const Ended ended = trace([&] { return work(); },
                            [&](const FileCall& call) {
                              calls = call.count;
                              replace_folder(path_, left);
                              expect_old_or_new(left);
                              return HasFailure();
                            });
  if (ended == Ended::kNotTraced) {
    GTEST_SKIP() << "tracing is not allowed here";
  }
  EXPECT_EQ(ended, Ended::kByItself) << "at call " << calls;
  EXPECT_GT(calls, 100);
  expect_old_or_new(path_);
}

TEST_F(StoreCrashWithEntries, AKilledWriterLeavesNoLockBehind) {
  const auto before = folder_.path() / "before";
  replace_folder(path_, before);
  for (int last = 1;; last += 23) {
    replace_folder(before, path_);
    const Ended ended =
        trace([&] { return work(); }, [&](const FileCall& call) { return call.count == last; });
    if (ended == Ended::kNotTraced) {
      GTEST_SKIP() << "tracing is not allowed here";
    }
    expect_old_or_new(path_);
    ASSERT_FALSE(HasFailure()) << "at call " << last;
    if (ended == Ended::kByItself) {
      break;
    }
  }
}

// Its remains are repaired as if it had never begun.
TEST_F(StoreCrashWithEntries, ARepairThatDiesLosesNoEntry) {
  const auto left = folder_.path() / "left";
  int calls = 0;
  const Ended ended = trace([&] { return repair_store(path_).ok(); },
                            [&](const FileCall& call) {
                              calls = call.count;
                              replace_folder(path_, left);
                              const auto kept = repair_store(left);
                              EXPECT_TRUE(kept.ok())
                                  << kept.error().message << " at call " << calls;
                              EXPECT_EQ(kept.ok() ? *kept : -1, 3) << "at call " << calls;
                              auto store = Store::open(left);
                              EXPECT_TRUE(store.ok()) << "at call " << calls;
                              if (store.ok()) {
                                expect_no_damage(*store);
                                EXPECT_EQ(read_back(*store, "kept"), (Objects{0, 1}));
                                EXPECT_EQ(read_back(*store, "removed"), (Objects{2, 3}));
                              }
                              return HasFailure();
                            });
  if (ended == Ended::kNotTraced) {
    GTEST_SKIP() << "tracing is not allowed here";
  }
  EXPECT_EQ(ended, Ended::kByItself) << "at call " << calls;
  EXPECT_GT(calls, 20);
}

TEST_F(StoreCrash, AProcessThatDiesWhileItMakesAStoreLeavesOneThatCanBeOpened) {
  const auto left = folder_.path() / "left";
  int calls = 0;
  const auto work = [&] {
    auto store = Store::open(path_);
    return store.ok() && put(*store, "a", {0});
  };
  const Ended ended = trace(work, [&](const FileCall& call) {
    calls = call.count;
    replace_folder(path_, left);
    auto store = Store::open(left);
    EXPECT_TRUE(store.ok()) << store.error().message << " at call " << calls;
    if (store.ok()) {
      expect_no_damage(*store);
      EXPECT_TRUE(put(*store, "a", {0}));
      EXPECT_EQ(read_back(*store, "a"), (Objects{0}));
    }
    return HasFailure();
  });
  if (ended == Ended::kNotTraced) {
    GTEST_SKIP() << "tracing is not allowed here";
  }
  EXPECT_EQ(ended, Ended::kByItself);
  EXPECT_GT(calls, 20);
}

TEST_F(StoreCrash, WritersAtTheSameTimeBothEndWell) {
  constexpr int kWriters = 3, kRounds = 12;
  std::vector<pid_t> children;
  for (int writer = 0; writer < kWriters; ++writer) {
    children.push_back(::fork());
    if (children.back() != 0) {
      continue;
    }
    auto store = Store::open(path_, {.grace_ms = 0});  // all make it at once
    bool good = store.ok();
    for (std::int32_t round = 0; good && round < kRounds; ++round) {
      // Without grace each gc takes what another writer has not named yet, and put_entry says so.
      const std::string name = std::to_string(writer) + "/" + std::to_string(round);
      good = false;
      for (int attempt = 0; !good && attempt < 50; ++attempt) {
        good = put(*store, name, {round, (round + writer) % 16});
      }
      static_cast<void>(put(*store, "shared", {writer, round}));
      good = good && store->collector().gc().ok();
    }
    ::_exit(good ? 0 : 1);
  }
  for (const pid_t child : children) {
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_EQ(state, 0);
  }
  auto store = Store::open(path_);
  ASSERT_TRUE(store.ok());
  for (int writer = 0; writer < kWriters; ++writer) {
    for (std::int32_t round = 0; round < kRounds; ++round) {
      EXPECT_EQ(read_back(*store, std::to_string(writer) + "/" + std::to_string(round)),
                (Objects{round, (round + writer) % 16}));
    }
  }
  expect_no_damage(*store);
}

TEST_F(StoreCrash, AFullDiskIsAnErrorAndLosesNothing) {
  {
    auto store = Store::open(path_);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(put(*store, "kept", {0, 1}));
  }
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  int refused = 0;
  for (rlim_t bytes = 0; bytes < 60'000; bytes += 1999) {
    const rlimit small{.rlim_cur = bytes, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    {
      auto store = Store::open(path_, {.write = {.sync = false}});
      const bool done = store.ok() && put(*store, "new", {2, 3});
      refused += done ? 0 : 1;
      if (!store.ok()) {
        EXPECT_EQ(store.error().code, ErrorCode::kIo) << store.error().message;
      }
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    auto store = Store::open(path_, {.grace_ms = 0, .write = {.sync = false}});
    ASSERT_TRUE(store.ok()) << store.error().message;
    EXPECT_EQ(read_back(*store, "kept"), (Objects{0, 1}));
    const Objects added = read_back(*store, "new");
    EXPECT_TRUE(added.empty() || added == (Objects{2, 3}));
    ASSERT_TRUE(store->remover().remove(test_hash("new"), "").ok());
    ASSERT_TRUE(store->collector().gc().ok());
  }
  ::signal(SIGXFSZ, old_action);
  EXPECT_GT(refused, 4);
}

// A process that saves, forgets and compacts checkpoints.
class CheckpointCrash : public ::testing::Test {
 protected:
  CheckpointCrash()
      : pool_(random_pool(small_geometry(), 16, 61)), path_(folder_.path() / "store") {}

  // The first `blocks` blocks of the pool; of the last one, 2 tokens.
  static LiveSequence sequence(std::int32_t blocks) {
    LiveSequence made{.name = "a", .fingerprint = fingerprint_of(1)};
    LiveRun& run = made.runs.emplace_back();
    for (std::int32_t i = 0; i < blocks; ++i) {
      const auto tokens = run_of(i + 1 < blocks ? 4 : 2, 0, 100 * i).tokens;
      run.run.tokens.insert(run.run.tokens.end(), tokens.begin(), tokens.end());
      run.blocks.push_back({i});
    }
    return made;
  }

  Status save(Store& store, std::int32_t blocks) {
    QUIRE_TRY(CheckpointManager checkpoints, CheckpointManager::create(store, {.keep = 2}));
    const LiveSequence live = sequence(blocks);
    const auto saved = checkpoints.save("", {&live, 1}, pool_);
    return saved.ok() ? Status() : Status(saved.error());
  }

  bool work() {
    auto store = Store::open(path_, {.grace_ms = 0});
    if (!store.ok() || !save(*store, 5).ok() || !save(*store, 7).ok()) {
      return false;
    }
    auto checkpoints = CheckpointManager::create(*store, {.keep = 2});
    return checkpoints.ok() && checkpoints->compact("checkpoint-4").ok() &&
           store->collector().gc().ok();
  }

  // Every checkpoint that is there is whole, and there are the two that must be.
  void expect_whole(const std::filesystem::path& path) {
    auto store = Store::open(path, {.grace_ms = 0});
    ASSERT_TRUE(store.ok()) << store.error().message;
    const auto checkpoints = CheckpointManager::create(*store, {.keep = 2});
    const auto list = checkpoints->list();
    ASSERT_TRUE(list.ok()) << list.error().message;
    ASSERT_GE(list->size(), 2U);
    ASSERT_LE(list->size(), 3U);  // cut short behind a save, before the oldest one went
    constexpr std::int32_t kBlocks[] = {0, 2, 3, 5, 7};
    for (const Checkpoint& checkpoint : *list) {
      const LiveSequence live = sequence(kBlocks[checkpoint.number]);
      const auto saved = checkpoints->tokens_of(checkpoint.sequences[0]);
      ASSERT_TRUE(saved.ok()) << saved.error().message;
      EXPECT_EQ(saved->runs[0].run.tokens, live.runs[0].run.tokens);
      PagedPool to = random_pool(small_geometry(), 16, 5);
      const auto& blocks = live.runs[0].blocks;
      ASSERT_TRUE(checkpoints->read(checkpoint.sequences[0], 0, 0, blocks, to).ok());
      const std::size_t tokens = live.runs[0].run.tokens.size();
      EXPECT_EQ(kv_bytes(to, blocks, tokens), kv_bytes(pool_, blocks, tokens));
    }
    EXPECT_EQ(checkpoints->latest()->number, list->front().number);
  }

  TemporaryFolder folder_;
  PagedPool pool_;
  std::filesystem::path path_;
};

TEST_F(CheckpointCrash, WhicheverCallIsTheLastNoGoodCheckpointIsLost) {
  {
    auto store = Store::open(path_);
    ASSERT_TRUE(store.ok() && save(*store, 2).ok() && save(*store, 3).ok());
  }
  const auto left = folder_.path() / "left";
  int calls = 0;
  const Ended ended = trace([&] { return work(); },
                            [&](const FileCall& call) {
                              calls = call.count;
                              replace_folder(path_, left);
                              expect_whole(left);
                              return HasFailure();
                            });
  if (ended == Ended::kNotTraced) {
    GTEST_SKIP() << "tracing is not allowed here";
  }
  EXPECT_EQ(ended, Ended::kByItself) << "at call " << calls;
  EXPECT_GT(calls, 60);
  expect_whole(path_);
}

}  // namespace
}  // namespace quire::kv_store
