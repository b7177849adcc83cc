#include "quire/device/memory_pool.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "quire/device/memory_source.h"
#include "quire/device/pool_buffer.h"
#include "quire/result.h"

namespace quire::device {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Stands for the driver: which blocks it gave out, and how much it has.
struct Ledger {
  std::map<std::byte*, std::int64_t> held;
  std::int64_t capacity = std::int64_t{1} << 40;
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [data, bytes] : held) {
      sum += bytes;
    }
    return sum;
  }
};

class FakeSource final : public MemorySource {
 public:
  explicit FakeSource(Ledger& ledger) : ledger_(ledger) {}
  Result<std::byte*> allocate(std::int64_t bytes) override {
    if (bytes > ledger_.capacity - ledger_.bytes()) {
      return Error{.code = ErrorCode::kOutOfBlocks, .message = "full", .needed_bytes = bytes};
    }
    // One byte apart from the next is enough: nobody writes here.
    auto* const data = static_cast<std::byte*>(std::malloc(1));
    ledger_.held[data] = bytes;
    return data;
  }
  Status release(std::byte* data, std::int64_t bytes) override {
    EXPECT_EQ(ledger_.held.at(data), bytes);
    ledger_.held.erase(data);
    std::free(data);
    return {};
  }

 private:
  Ledger& ledger_;
};

class MemoryPoolTest : public ::testing::Test {
 protected:
  MemoryPool make(AllocationBudget budget = {}) {
    return MemoryPool(std::make_unique<FakeSource>(ledger_), budget);
  }
  Ledger ledger_;
};

TEST_F(MemoryPoolTest, SizesAreRoundedToAlignmentAndLargeOnesToDriverSteps) {
  EXPECT_EQ(MemoryPool::rounded(1), 256);
  EXPECT_EQ(MemoryPool::rounded(256), 256);
  EXPECT_EQ(MemoryPool::rounded(257), 512);
  EXPECT_EQ(MemoryPool::rounded(kMiB), 2 * kMiB);
  EXPECT_EQ(MemoryPool::rounded(2 * kMiB + 1), 4 * kMiB);
}

TEST_F(MemoryPoolTest, StatisticsAreTheSources) {
  MemoryPool pool = make();
  {
    const auto a = pool.allocate(1000);
    const auto b = pool.allocate(5 * kMiB);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->bytes(), 1000);
    EXPECT_EQ(pool.stats().used_bytes, 1024 + 6 * kMiB);
    EXPECT_EQ(pool.stats().reserved_bytes, ledger_.bytes());
    EXPECT_EQ(pool.stats().driver_allocations, 2);
  }
  EXPECT_EQ(pool.stats().used_bytes, 0);
  EXPECT_EQ(pool.stats().peak_used_bytes, 1024 + 6 * kMiB);
  EXPECT_EQ(pool.stats().reserved_bytes, ledger_.bytes());
  ASSERT_TRUE(pool.shrink(0).ok());
  EXPECT_EQ(pool.stats().reserved_bytes, 0);
  EXPECT_TRUE(ledger_.held.empty());
}

TEST_F(MemoryPoolTest, BestFitIsReusedAndTooLargeIsNot) {
  MemoryPool pool = make();
  std::byte *small = nullptr, *large = nullptr;
  {
    const auto a = pool.allocate(1024), b = pool.allocate(1536), c = pool.allocate(100'000);
    small = a->data();
    large = b->data();
  }
  EXPECT_EQ(pool.allocate(1000)->data(), small);
  EXPECT_EQ(pool.allocate(1100)->data(), large);
  const auto tiny = pool.allocate(256);  // 1024 is more than twice that
  EXPECT_EQ(pool.stats().driver_allocations, 4);
}

TEST_F(MemoryPoolTest, MovingABlockMovesTheLoan) {
  MemoryPool pool = make();
  PoolBlock a = pool.allocate(300).value();
  PoolBlock b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the test
  EXPECT_EQ(b.bytes(), 300);
  b = PoolBlock();
  EXPECT_EQ(pool.stats().used_bytes, 0);
}

TEST_F(MemoryPoolTest, ZeroBytesNeedNothingAndNegativeSizesAreRefused) {
  MemoryPool pool = make({.bytes = 0, .allocations = 0});
  ASSERT_TRUE(pool.allocate(0).ok());
  EXPECT_EQ(pool.allocate(-1).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(MemoryPoolTest, AFullSourceIsAskedAgainAfterUnusedBlocksWentBack) {
  ledger_.capacity = 10 * kMiB;
  MemoryPool pool = make();
  {
    const auto unused = pool.allocate(2 * kMiB);
  }
  const auto most = pool.allocate(10 * kMiB);
  ASSERT_TRUE(most.ok());
  EXPECT_EQ(pool.stats().driver_releases, 1);
  const PoolStats before = pool.stats();
  const auto none = pool.allocate(256);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(pool.stats(), before);
}

TEST_F(MemoryPoolTest, BudgetInBytesGivesNeededAndFree) {
  MemoryPool pool = make({.bytes = 4 * kMiB});
  const auto held = pool.allocate(2 * kMiB);
  const auto refused = pool.allocate(3 * kMiB);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().needed_bytes, 4 * kMiB);
  EXPECT_EQ(refused.error().free_bytes, 2 * kMiB);
}

// Builds three buffers or none; the k-th allocation fails for each k.
TEST_F(MemoryPoolTest, ANewBudgetCountsFromThenOnAndLeavesLoansAlone) {
  MemoryPool pool = make();
  const PoolBlock block = pool.allocate(kMiB).value();
  pool.set_budget({.allocations = 1});
  EXPECT_EQ(pool.allocate(kMiB).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(pool.stats().used_bytes, MemoryPool::rounded(kMiB));
  pool.set_budget({});
  EXPECT_TRUE(pool.allocate(kMiB).ok());
}

TEST_F(MemoryPoolTest, FailureAtEachAllocationLeaksNothing) {
  for (std::int64_t k = 0; k <= 3; ++k) {
    MemoryPool pool = make({.allocations = k});
    const auto build = [&]() -> Result<std::vector<PoolBuffer<float, DeviceMemoryTag>>> {
      std::vector<PoolBuffer<float, DeviceMemoryTag>> buffers;
      for (const std::size_t size : {100U, 5'000U, 700'000U}) {
        QUIRE_TRY(auto buffer, (PoolBuffer<float, DeviceMemoryTag>::make(pool, size)));
        buffers.push_back(std::move(buffer));
      }
      return buffers;
    };
    EXPECT_EQ(build().ok(), k == 3);
    EXPECT_EQ(pool.stats().used_bytes, 0);
    EXPECT_EQ(pool.stats().driver_allocations, k);
    ASSERT_TRUE(pool.shrink(0).ok());
    EXPECT_TRUE(ledger_.held.empty());
  }
}

TEST_F(MemoryPoolTest, ShrinkKeepsTheBoundAndWhatIsInUse) {
  MemoryPool pool = make();
  const auto used = pool.allocate(4 * kMiB);
  {
    const auto a = pool.allocate(2 * kMiB), b = pool.allocate(6 * kMiB);
  }
  EXPECT_EQ(pool.stats().reserved_bytes, 12 * kMiB);
  ASSERT_TRUE(pool.shrink(6 * kMiB).ok());
  EXPECT_EQ(pool.stats().reserved_bytes, 6 * kMiB);
  ASSERT_TRUE(pool.shrink(0).ok());
  EXPECT_EQ(pool.stats().reserved_bytes, 4 * kMiB);
}

TEST_F(MemoryPoolTest, ChurnOfFixedSizesIsServedFromTheCache) {
  MemoryPool pool = make();
  std::mt19937 random(4);
  std::vector<PoolBlock> held(16);
  for (int i = 0; i < 20'000; ++i) {
    const std::int64_t bytes = std::int64_t{4096} << (random() % 8);
    held[random() % held.size()] = pool.allocate(bytes).value();
    ASSERT_EQ(pool.stats().reserved_bytes, ledger_.bytes());
  }
  EXPECT_LT(pool.stats().driver_allocations * 100, pool.stats().requests);  // more than 99% reused
}

TEST_F(MemoryPoolTest, ThreadsShareItWithoutLosingBlocks) {
  MemoryPool pool = make();
  const auto work = [&pool](std::int64_t seed) {
    for (std::int64_t i = 0; i < 5'000; ++i) {
      const auto a = pool.allocate(1 + (i * seed) % 9'000), b = pool.allocate(2 * kMiB);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_NE(a->data(), b->data());
    }
  };
  std::thread one(work, 7), two(work, 13);
  one.join();
  two.join();
  EXPECT_EQ(pool.stats().used_bytes, 0);
  EXPECT_EQ(pool.stats().requests, 20'000);
  EXPECT_EQ(pool.stats().reserved_bytes, ledger_.bytes());
}

TEST_F(MemoryPoolTest, DestructionReturnsEverything) {
  {
    MemoryPool pool = make();
    const auto a = pool.allocate(1), b = pool.allocate(kMiB);
  }
  EXPECT_TRUE(ledger_.held.empty());
}

}  // namespace
}  // namespace quire::device
