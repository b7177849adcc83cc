// Loads whose reading the test holds up: what others see meanwhile follows from no timing. The
// test's own thread is the engine's.
#include "quire/tiers/background_loads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/cpu/no_threads.h"
#include "quire/engine/tasks.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::tiers {
namespace {

using Blocks = std::vector<BlockId>;
using LoadRef = BackgroundLoads::LoadRef;

// Time that a test waits to see that something does not come.
constexpr std::chrono::milliseconds kMoment(300);
constexpr int kTokens = 10;  // three blocks of four

class ArrivalsTest : public testing::Test {
 protected:
  void start(std::vector<kv_store::KVFileRange> ranges, BackgroundLoads::Done done) {
    std::vector<BackgroundLoads::Order> orders;
    orders.push_back({.ranges = std::move(ranges), .done = std::move(done)});
    background_loads_.start(std::move(orders));
  }
  // Loads the file's KV into these blocks.
  LoadRef load(
      const std::string& file, const Blocks& to,
      BackgroundLoads::Done done = [](BackgroundLoads::Load&, double) {}) {
    auto opened = kv_store::KVFile::open(file).value();
    std::vector<kv_store::KVFileRange> ranges;
    ranges.push_back({.file = std::make_shared<const kv_store::KVFile>(std::move(opened)),
                      .blocks = {.to = to}});
    start(std::move(ranges), std::move(done));
    return background_loads_.filling(to).back();
  }

  [[nodiscard]] std::string saved() const {
    std::string path = folder_.path() / "saved.qkv";
    const kv_store::KVFileContent content{.fingerprint = kv_store::fingerprint_of(1),
                                          .geometry = from_.geometry(),
                                          .runs = {kv_store::run_of(kTokens)}};
    const std::vector<Blocks> blocks = {saved_blocks_};
    EXPECT_TRUE(kv_store::write_kv_file(path, content, from_, blocks).ok());
    return path;
  }

  // Returns the path of the file, damaged in the first block of the last layer and head.
  [[nodiscard]] std::string damaged() const {
    std::vector<char> bytes = kv_store::file_bytes_of(saved());
    bytes[bytes.size() - 3 * static_cast<std::size_t>(from_.geometry().head_block_bytes())] ^= 1;
    std::string path = folder_.path() / "damaged.qkv";
    kv_store::write_bytes(path, bytes);
    return path;
  }

  [[nodiscard]] bool is_there(const Blocks& blocks) const {
    return kv_store::kv_bytes(to_, blocks, kTokens) ==
           kv_store::kv_bytes(from_, saved_blocks_, kTokens);
  }

  // From now on the loading thread does this before a task is sent.
  void before_tasks(std::function<void()> todo) { before_task_ = std::move(todo); }

  // Runs the tasks as the engine's thread does between two steps.
  void run_tasks() {
    engine::Tasks tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) {
      task();
    }
  }

  const kv_store::TemporaryFolder folder_;
  const kv_store::PagedPool from_ = kv_store::random_pool(kv_store::small_geometry(), 6, 1);
  const Blocks saved_blocks_ = kv_store::ids({5, 1, 2});
  kv_store::PagedPool to_ = kv_store::random_pool(kv_store::small_geometry(), 9, 2);
  kv::Ledger ledger_{{.num_blocks = 9, .block_tokens = 4}};
  std::function<void()> before_task_ = [] {};
  std::mutex mutex_;  // guards what follows
  engine::Tasks tasks_;
  BackgroundLoads background_loads_{to_, ledger_, [this](engine::Tasks task) {
                                      before_task_();
                                      const std::lock_guard lock(mutex_);
                                      tasks_.splice(tasks_.end(), task);
                                    }};
};

// The task is on its way before anybody is let go: what they ask the engine comes behind it.
TEST_F(ArrivalsTest, WhoHasWaitedForAllOfALoadFindsItFinished) {
  std::promise<void> waited;
  before_tasks([&, let_go = waited.get_future().share()] {
    EXPECT_EQ(let_go.wait_for(kMoment), std::future_status::timeout);
  });
  bool finished = false;
  const LoadRef loading =
      load(saved(), kv_store::ids({0, 1, 2}),
           [&](BackgroundLoads::Load& load, double) { finished = load.outcome().ok(); });
  auto waiting = std::async(std::launch::async, [&] {
    const Status status = loading->outcome();
    waited.set_value();
    return status;
  });
  EXPECT_TRUE(waiting.get().ok());
  run_tasks();
  EXPECT_TRUE(finished);
  EXPECT_TRUE(background_loads_.idle());
  EXPECT_TRUE(is_there(kv_store::ids({0, 1, 2})));
}

TEST_F(ArrivalsTest, WhatIsNotReadYetIsWaitedForByWhoeverReadsOrCopiesIt) {
  std::promise<void> go;
  before_tasks([held_up = go.get_future().share()] { held_up.wait(); });
  const Blocks first = kv_store::ids({0, 1, 2}), second = kv_store::ids({3, 4, 5});
  const LoadRef before = load(saved(), first);
  const LoadRef loading = load(saved(), second);
  EXPECT_EQ(background_loads_.filling(second), std::vector{loading});
  EXPECT_TRUE(background_loads_.check(second).ok()) << "nothing bad is known";
  EXPECT_FALSE(is_there(second));
  auto layer = std::async(std::launch::async, [&] { return loading->wait(0); });
  EXPECT_EQ(layer.wait_for(kMoment), std::future_status::timeout);
  auto later = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(kMoment);
    go.set_value();
  });
  background_loads_.before_copy({.from = BlockId{4}, .to = BlockId{6}});
  EXPECT_TRUE(is_there(second)) << "the copy waits for all layers";
  layer.get();
  EXPECT_TRUE(before->outcome().ok());
  EXPECT_TRUE(background_loads_.outcome(second).ok());
  run_tasks();
  EXPECT_TRUE(background_loads_.idle());
}

TEST_F(ArrivalsTest, ACopyThatWasOrderedBeforeTheDamageWasSeenIsBadToo) {
  std::promise<void> go;
  before_tasks([held_up = go.get_future().share()] { held_up.wait(); });
  const LoadRef before = load(saved(), kv_store::ids({0, 1, 2}));
  const Blocks bad = kv_store::ids({3, 4, 5});
  const LoadRef loading = load(damaged(), bad);
  EXPECT_TRUE(background_loads_.check(bad).ok());
  auto later = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(kMoment);
    go.set_value();
  });
  background_loads_.before_copy({.from = BlockId{3}, .to = BlockId{6}});
  EXPECT_EQ(background_loads_.check(kv_store::ids({6})).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(loading->outcome().error().code, ErrorCode::kCorrupt);
  run_tasks();
  EXPECT_EQ(background_loads_.check(bad).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(background_loads_.check(kv_store::ids({0, 1, 2, 7})).ok());
}

TEST_F(ArrivalsTest, APartThatIsDamagedSpoilsNoOtherOfItsLoad) {
  const auto range = [](const std::string& file, const Blocks& to) {
    return kv_store::KVFileRange{
        .file = std::make_shared<const kv_store::KVFile>(kv_store::KVFile::open(file).value()),
        .blocks = {.to = to}};
  };
  const Blocks good = kv_store::ids({0, 1, 2}), bad = kv_store::ids({3, 4, 5});
  std::vector<kv_store::KVFileRange> ranges;
  ranges.push_back(range(damaged(), bad));
  ranges.push_back(range(saved(), good));
  Status ended, of_the_good_one = {ErrorCode::kInternal, "not yet"};
  start(std::move(ranges), [&](BackgroundLoads::Load& load, double) {
    ended = load.outcome();
    of_the_good_one = load.outcome(good);
  });
  const LoadRef loading = background_loads_.filling(good).back();
  EXPECT_TRUE(loading->outcome(good).ok());
  EXPECT_EQ(loading->outcome(bad).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(background_loads_.outcome(good).ok());
  EXPECT_FALSE(background_loads_.outcome(bad).ok());
  run_tasks();
  EXPECT_EQ(ended.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(of_the_good_one.ok());
  EXPECT_TRUE(is_there(good));
  EXPECT_TRUE(background_loads_.check(good).ok());
  EXPECT_EQ(background_loads_.check(bad).error().code, ErrorCode::kCorrupt);
}

TEST_F(ArrivalsTest, WithoutAThreadItIsReadAtOnce) {
  Status ended = {ErrorCode::kInternal, "not yet"};
  {
    const device::NoThreads refused;
    const LoadRef loading =
        load(saved(), kv_store::ids({0, 1, 2}),
             [&](BackgroundLoads::Load& load, double) { ended = load.outcome(); });
    EXPECT_TRUE(loading->outcome().ok());
    EXPECT_TRUE(is_there(kv_store::ids({0, 1, 2})));
  }
  run_tasks();
  EXPECT_TRUE(ended.ok());
  EXPECT_TRUE(load(saved(), kv_store::ids({3, 4, 5}))->outcome().ok());
}

}  // namespace
}  // namespace quire::tiers
