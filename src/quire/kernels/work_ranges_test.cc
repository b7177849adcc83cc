#include "quire/kernels/work_ranges.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "quire/device/cpu/thread_pool.h"

namespace quire::kernels {
namespace {

TEST(WorkRange, IsTakenFromBothEndsUntilNothingIsLeft) {
  WorkRange range;
  range.set({10, 17});
  const WorkRange::Items first = range.take_first(3);
  EXPECT_EQ(first.first, 10);
  EXPECT_EQ(first.end, 13);
  const WorkRange::Items last = range.take_last(2);
  EXPECT_EQ(last.first, 15);
  EXPECT_EQ(last.end, 17);
  const WorkRange::Items rest = range.take_first(3);
  EXPECT_EQ(rest.first, 13);
  EXPECT_EQ(rest.end, 15);
  EXPECT_EQ(range.take_first(1).size(), 0);
  EXPECT_EQ(range.take_last(1).size(), 0);
}

class WorkRanges : public ::testing::TestWithParam<int> {};

TEST_P(WorkRanges, CoverEveryItemOnceInRangesOfAtMostSoMany) {
  device::ThreadPool pool(GetParam());
  std::vector<WorkRange> ranges(static_cast<std::size_t>(GetParam()));
  for (const std::int64_t items : {1, 2, 3, 7, 24, 1000}) {
    for (const std::int64_t most : {1, 2, 4, 2000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(items));
      std::atomic<bool> fits = true;
      for_each_range(pool, ranges, items, most,
                     [&](WorkRange::Items range, std::int64_t next, int thread) {
                       if (range.size() > most || next >= items || thread >= pool.threads()) {
                         fits = false;
                       }
                       for (std::int64_t i = range.first; i < range.end; ++i) {
                         ++seen[static_cast<std::size_t>(i)];
                       }
                     });
      EXPECT_TRUE(fits);
      for (const std::atomic<int>& count : seen) {
        EXPECT_EQ(count, 1) << items << " items, " << most << " at once";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkRanges, ::testing::Values(1, 2, 3, 8));

TEST(WorkRanges, WhoIsDoneHelpsAtTheFarEndOfAnother) {
  device::ThreadPool pool(2);
  std::vector<WorkRange> ranges(2);
  std::vector<std::atomic<int>> by(100);
  // Item 0 takes until all others are done: without help those of its range never would be.
  std::atomic<int> done = 0;
  for_each_range(pool, ranges, 100, 1, [&](WorkRange::Items range, std::int64_t, int thread) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (range.first == 0 && done < 99 && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::yield();
    }
    by[static_cast<std::size_t>(range.first)] = thread;
    ++done;
  });
  EXPECT_EQ(done, 100);
  for (std::size_t i = 1; i < by.size(); ++i) {
    EXPECT_NE(by[i], by[0]) << i;
  }
}

}  // namespace
}  // namespace quire::kernels
