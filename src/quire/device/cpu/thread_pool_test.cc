// The pool: every index once, late and sleeping workers harmless.
#include "quire/device/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "quire/device/cpu/spin.h"

namespace quire::device {
namespace {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 2000; ++round) {
      const int count = 1 + round % 37;
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
      pool.run(count, [&](int index, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        seen[static_cast<std::size_t>(index)].fetch_add(1);
      });
      for (const auto& calls : seen) {
        ASSERT_EQ(calls.load(), 1);
      }
    }
  }
}

// Plain writes of the loop must be visible to the caller, and plain writes of the caller to the
// loop: what ThreadSanitizer checks here.
TEST(ThreadPool, OrdersMemoryBetweenCallerAndItems) {
  ThreadPool pool(4);
  std::vector<int> values(64, 1);
  for (int round = 0; round < 500; ++round) {
    pool.run(64, [&](int index, int) { values[static_cast<std::size_t>(index)] *= 2; });
    for (int& value : values) {
      ASSERT_EQ(value, 2);
      value = 1;
    }
  }
}

TEST(ThreadPool, NoTwoItemsShareAThreadIndexAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  for (int round = 0; round < 200; ++round) {
    pool.run(50, [&](int, int thread) {
      auto& count = inside[static_cast<std::size_t>(thread)];
      EXPECT_EQ(count.fetch_add(1), 0);
      count.fetch_sub(1);
    });
  }
}

TEST(ThreadPool, AnItemMayWaitForTheOneBeforeIt) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::atomic<int> done = 0;
      pool.run(40, [&](int index, int) {
        spin_until([&] { return done.load() == index; });
        done.fetch_add(1);
      });
      ASSERT_EQ(done.load(), 40);
    }
  }
}

TEST(ThreadPool, WorksAfterItsThreadsFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::atomic<int> sum{0};
    pool.run(100, [&](int index, int) { sum.fetch_add(index); });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(ThreadPool, SingleItemRunsOnTheCaller) {
  ThreadPool pool(3);
  const std::thread::id caller = std::this_thread::get_id();
  pool.run(1, [&](int, int thread) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, NoItemsIsANoOp) {
  ThreadPool pool(2);
  pool.run(0, [](int, int) { FAIL(); });
}

TEST(ThreadPool, AnyNumberOfThreadsBelowOneMeansTheCallerAlone) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.threads(), 1);
  int calls = 0;
  pool.run(3, [&](int, int) { ++calls; });
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace quire::device
