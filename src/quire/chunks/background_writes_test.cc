#include "quire/chunks/background_writes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "quire/device/cpu/no_threads.h"
#include "quire/result.h"

namespace quire::chunks {
namespace {

using testing::ElementsAre;

TEST(BackgroundWrites, WriteInOrderAndFlushWaitsForAll) {
  BackgroundWrites writes;
  std::vector<int> written;
  for (int i = 0; i < 100; ++i) {
    writes.put("a", [&written, i] {
      written.push_back(i);
      return Status();
    });
  }
  EXPECT_TRUE(writes.flush().ok());
  ASSERT_EQ(written.size(), 100);
  EXPECT_TRUE(std::ranges::is_sorted(written));
}

TEST(BackgroundWrites, PuttingDoesNotWaitForTheWrite) {
  BackgroundWrites writes;
  std::promise<void> go;
  writes.put("a", [&] {
    go.get_future().wait();
    return Status();
  });
  go.set_value();  // never reached if put waited
  EXPECT_TRUE(writes.flush().ok());
}

TEST(BackgroundWrites, FlushTellsTheFirstFailureOnce) {
  BackgroundWrites writes;
  writes.put("a", [] { return Status(ErrorCode::kIo, "the disk is full"); });
  writes.put("a", [] { return Status(ErrorCode::kIo, "the disk is still full"); });
  const Status first = writes.flush();
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().message, "the disk is full");
  EXPECT_TRUE(writes.flush().ok());
}

TEST(BackgroundWrites, ANameWaitsUntilItIsWritten) {
  BackgroundWrites writes;
  std::promise<void> begun;
  std::promise<void> go;
  writes.put("a", [&] {
    begun.set_value();
    go.get_future().wait();
    return Status();
  });
  writes.put("b", [] { return Status(); });
  begun.get_future().wait();
  EXPECT_TRUE(writes.is_waiting("a")) << "under way";
  EXPECT_TRUE(writes.is_waiting("b"));
  EXPECT_FALSE(writes.is_waiting("c"));
  go.set_value();
  EXPECT_TRUE(writes.flush().ok());
  EXPECT_FALSE(writes.is_waiting("a"));
  EXPECT_FALSE(writes.is_waiting("b"));
}

TEST(BackgroundWrites, AFailureOfANameIsKnownUntilItIsWritten) {
  BackgroundWrites writes;
  const auto full = [] { return Status(ErrorCode::kIo, "the disk is full"); };
  writes.put("a", full);
  writes.put("b", [] { return Status(); });
  writes.wait();
  EXPECT_TRUE(writes.has_failed("a"));
  EXPECT_FALSE(writes.has_failed("b"));
  EXPECT_FALSE(writes.write_now("b", full).ok());
  EXPECT_TRUE(writes.has_failed("b"));
  EXPECT_TRUE(writes.write_now("a", [] { return Status(); }).ok());
  EXPECT_FALSE(writes.has_failed("a"));
  EXPECT_FALSE(writes.flush().ok()) << "of a, behind";
  EXPECT_TRUE(writes.flush().ok()) << "that of b went to its caller";
}

TEST(BackgroundWrites, WritingNowComesBehindWhatWaits) {
  BackgroundWrites writes;
  std::vector<int> written;
  std::promise<void> go;
  writes.put("a", [&] {
    go.get_future().wait();
    written.push_back(1);
    return Status();
  });
  std::thread releases([&] { go.set_value(); });
  const Status second = writes.write_now("b", [&] {
    written.push_back(2);
    return Status();
  });
  releases.join();
  EXPECT_TRUE(second.ok());
  EXPECT_THAT(written, ElementsAre(1, 2));
}

TEST(BackgroundWrites, WaitingForOneAfterTheOtherEndsWhenNoneIsLeft) {
  BackgroundWrites writes;
  EXPECT_FALSE(writes.wait_one());
  std::promise<void> go;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  writes.put("a", [&] {
    go.get_future().wait();
    return Status();
  });
  writes.put("b", [held = std::move(held)] { return Status(); });
  std::thread releases([&] { go.set_value(); });
  int waited = 0;
  while (writes.wait_one()) {
    ++waited;
  }
  releases.join();
  EXPECT_LE(waited, 2);
  EXPECT_TRUE(seen.expired());
}

TEST(BackgroundWrites, WhatAWriteHoldsHasGoneAfterFlush) {
  BackgroundWrites writes;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  writes.put("a", [held = std::move(held)] { return Status(); });
  EXPECT_TRUE(writes.flush().ok());
  EXPECT_TRUE(seen.expired());
}

TEST(BackgroundWrites, StoppingWritesWhatIsLeftAndLaterOnesAreWrittenAtOnce) {
  BackgroundWrites writes;
  std::vector<int> written;
  std::promise<void> go;
  writes.put("a", [&] {
    go.get_future().wait();
    written.push_back(1);
    return Status();
  });
  std::thread releases([&] { go.set_value(); });
  writes.stop();
  releases.join();
  EXPECT_THAT(written, ElementsAre(1));
  writes.put("a", [&] {
    written.push_back(2);
    return Status();
  });
  EXPECT_THAT(written, ElementsAre(1, 2));
  EXPECT_TRUE(writes.flush().ok());
}

TEST(BackgroundWrites, WhatIsNotEvenTriedIsToldByTheNextFlushAndHasNotFailed) {
  BackgroundWrites writes;
  writes.refuse({ErrorCode::kIo, "read-only"});
  writes.refuse({ErrorCode::kIo, "another"});
  EXPECT_FALSE(writes.has_failed("a"));
  EXPECT_EQ(writes.flush().error().message, "read-only");
  EXPECT_TRUE(writes.flush().ok());
}

TEST(BackgroundWrites, WithoutAThreadTheCallerWritesInOrder) {
  BackgroundWrites writes;
  std::vector<int> written;
  const auto put = [&](int i) {
    writes.put("a", [&written, i] {
      written.push_back(i);
      return i == 1 ? Status(ErrorCode::kIo, "the disk is full") : Status();
    });
  };
  {
    const device::NoThreads refused;
    put(0);
    put(1);
    EXPECT_THAT(written, ElementsAre(0, 1));
    EXPECT_TRUE(writes.has_failed("a"));
  }
  put(2);
  EXPECT_EQ(writes.flush().error().message, "the disk is full");
  EXPECT_THAT(written, ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace quire::chunks
