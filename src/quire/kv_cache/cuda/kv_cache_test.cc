// KVCache: allocation, pointers, zeros, tracking, positions.
#include "quire/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>

#include "quire/device/cuda/copy.h"
#include "quire/kv_cache/cuda/kv_test_util.h"
#include "quire/result.h"

namespace quire::kv_cache::cuda {
namespace {

using test::Bytes;
using test::config_of;
using test::must;

class KVCacheTest : public test::KVGpuTest {
 protected:
  std::int64_t driver_free() { return must(context_->driver_memory()).free_bytes; }
  // Fills the whole cache with bytes that no result may depend on.
  void poison(const KVCache& cache) {
    must(device::cuda::fill_async(cache.keys(0).data, 0xFF,
                                  static_cast<std::size_t>(cache.size_bytes()), stream()));
    wait();
  }
  static bool all_zero(const Bytes& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b == 0; });
  }
};

std::ptrdiff_t distance(const KVLayerView& from, const KVLayerView& to) {
  return static_cast<std::byte*>(to.data) - static_cast<std::byte*>(from.data);
}

// Allocation (2)

TEST_F(KVCacheTest, AllocationHasTheDocumentsSizes) {
  EXPECT_EQ(KVCache(config_of(24, 2048, 2, 64)).size_bytes(), 25'165'824);
  EXPECT_EQ(KVCache(config_of(32, 4096, 8, 128)).size_bytes(), 536'870'912);
}

TEST_F(KVCacheTest, AllocationTakesAndReturnsWhatItSays) {
  const std::int64_t before = driver_free();
  {
    const KVCache cache(config_of(32, 4096, 8, 128));
    EXPECT_EQ(before - driver_free(), 536'870'912);
  }
  EXPECT_EQ(driver_free(), before);
}

// Layer pointers (3)

TEST_F(KVCacheTest, LayerPointersAreSpacedByLayerSize) {
  const KVCache cache(config_of(4, 100, 2, 64));
  const std::ptrdiff_t layer = 100 * 2 * 64 * 2;
  EXPECT_EQ(cache.config().layer_bytes(), layer);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(distance(cache.keys(0), cache.keys(i)), 2 * layer * i);
    EXPECT_EQ(distance(cache.keys(i), cache.values(i)), layer);
  }
  EXPECT_EQ(distance(cache.keys(0), cache.values(3)) + layer, cache.size_bytes());
}

TEST_F(KVCacheTest, LayerPointersOutOfRangeThrow) {
  const KVCache cache(config_of(4, 100, 2, 64));
  for (const int layer : {-1, 4, std::numeric_limits<int>::max()}) {
    EXPECT_THROW((void)cache.keys(layer), std::out_of_range);
    EXPECT_THROW((void)cache.values(layer), std::out_of_range);
  }
}

TEST_F(KVCacheTest, LayerPointersConvertToThePlainPointer) {
  const KVCache cache(config_of(1, 8, 1, 32));
  const __half* const keys = cache.keys(0);
  EXPECT_EQ(static_cast<const void*>(keys), cache.keys(0).data);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(cache.keys(0).data) % 256, 0U);
}

// Zero-initialization (3)

TEST_F(KVCacheTest, ZeroAtBirth) {
  KVCacheConfig config = config_of(4, 300, 2, 64);
  config.zero_fill = false;
  {
    poison(KVCache(config));
  }  // the next allocation likely gets this memory
  config.zero_fill = true;
  EXPECT_TRUE(all_zero(contents(KVCache(config))));
}

TEST_F(KVCacheTest, ZeroAfterReset) {
  KVCache cache(config_of(4, 300, 2, 64));
  poison(cache);
  cache.reset(stream());
  EXPECT_TRUE(all_zero(contents(cache)));
}

TEST_F(KVCacheTest, ZerosAreOptional) {
  KVCacheConfig config = config_of(2, 100, 2, 64);
  config.zero_fill = false;
  KVCache cache(config);
  poison(cache);
  must(cache.try_advance(7));
  cache.reset();
  EXPECT_EQ(cache.position(), 0);
  EXPECT_EQ(contents(cache).back(), 0xFF);
}

// VRAM tracking (3)

TEST_F(KVCacheTest, TrackerGoesUpAndDown) {
  VramTracker tracker;
  {
    const KVCache a(config_of(24, 2048, 2, 64), &tracker);
    EXPECT_EQ(tracker.used_bytes(), 25'165'824);
    const KVCache b(config_of(1, 1, 1, 1), &tracker);
    EXPECT_EQ(tracker.used_bytes(), 25'165'824 + 4);
  }
  EXPECT_EQ(tracker.used_bytes(), 0);
  EXPECT_EQ(tracker.peak_bytes(), 25'165'824 + 4);
}

TEST_F(KVCacheTest, TrackerFollowsMoves) {
  VramTracker tracker;
  const KVCacheConfig config = config_of(2, 100, 2, 64);
  {
    KVCache a(config, &tracker);
    a.advance_position(5);
    KVCache b(std::move(a));
    EXPECT_EQ(b.position(), 5);
    // NOLINTBEGIN(bugprone-use-after-move): what moving leaves behind is specified
    EXPECT_EQ(a.size_bytes(), 0);
    EXPECT_TRUE(a.is_full());
    EXPECT_THROW((void)a.keys(0), std::out_of_range);
    EXPECT_THROW(a.advance_position(), KVOverflowError);
    a.reset();
    // NOLINTEND(bugprone-use-after-move)
    EXPECT_EQ(tracker.used_bytes(), config.size_bytes());
    KVCache c(config, &tracker);
    c = std::move(b);
    EXPECT_EQ(c.position(), 5);
    EXPECT_EQ(tracker.used_bytes(), config.size_bytes());
  }
  EXPECT_EQ(tracker.used_bytes(), 0);
}

TEST_F(KVCacheTest, TrackerLimitRefusesBeforeTheDriverIsAsked) {
  VramTracker tracker(config_of(2, 100, 2, 64).size_bytes());
  const std::int64_t before = driver_free();
  const KVCache held(config_of(1, 100, 2, 64), &tracker);
  const std::int64_t used = tracker.used_bytes();
  const auto refused = KVCache::create(config_of(2, 100, 2, 64), &tracker);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(refused.error().needed_bytes, 2 * used);
  EXPECT_EQ(refused.error().free_bytes, used);
  EXPECT_EQ(tracker.used_bytes(), used);
  EXPECT_LE(before - driver_free(), std::int64_t{2} << 20);
}

TEST_F(KVCacheTest, ADeviceThatIsFullIsATypedErrorAndNothingIsCharged) {
  VramTracker tracker;
  const KVCacheConfig config = config_of(1024, 1 << 20, 8, 128);  // 4 TiB
  const std::int64_t before = driver_free();
  try {
    const KVCache cache(config, &tracker);
    FAIL() << "4 TiB were given";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.error().code, ErrorCode::kOutOfBlocks);
    EXPECT_EQ(error.error().needed_bytes, config.size_bytes());
    EXPECT_GT(error.error().free_bytes, 0);
  }
  EXPECT_EQ(tracker.used_bytes(), 0);
  EXPECT_EQ(driver_free(), before);
}

// Realistic models (2)

TEST_F(KVCacheTest, RealisticSmallModel) {  // Qwen2.5 0.5B
  const KVCache cache(config_of(24, 2048, 2, 64));
  EXPECT_TRUE(all_zero(download(cache.values(23).data, cache.config().layer_bytes())));
}

TEST_F(KVCacheTest, RealisticLargeModel) {  // Llama 3 8B
  const KVCache cache(config_of(32, 4096, 8, 128));
  EXPECT_TRUE(all_zero(download(cache.values(31).data, cache.config().layer_bytes())));
}

// Edge cases (3)

TEST_F(KVCacheTest, EdgeOneElement) {
  KVCache cache(config_of(1, 1, 1, 1));
  cache.advance_position();
  EXPECT_TRUE(cache.is_full());
}

TEST_F(KVCacheTest, EdgeInvalidConfigurationsThrow) {
  EXPECT_THROW(KVCache{config_of(0, 1, 1, 1)}, std::invalid_argument);
  EXPECT_THROW(KVCache{config_of(1, 1, 1, -64)}, std::invalid_argument);
}

TEST_F(KVCacheTest, EdgeManySmallCaches) {
  const std::int64_t before = driver_free();
  for (int i = 0; i < 200; ++i) {
    const KVCache cache(config_of(1 + i % 3, 17, 1, 80));
  }
  EXPECT_LE(before - driver_free(), std::int64_t{2} << 20);
}

// Cache management (8)

TEST_F(KVCacheTest, PositionTrackingInitialState) {
  const KVCache cache(config_of(2, 10, 2, 64));
  EXPECT_EQ(cache.position(), 0);
  EXPECT_FALSE(cache.is_full());
  EXPECT_EQ(cache.remaining_capacity(), 10);
}

TEST_F(KVCacheTest, PositionAdvanceSingle) {
  KVCache cache(config_of(2, 10, 2, 64));
  cache.advance_position();
  EXPECT_EQ(cache.position(), 1);
  EXPECT_EQ(cache.remaining_capacity(), 9);
}

TEST_F(KVCacheTest, PositionAdvanceMultiple) {
  KVCache cache(config_of(2, 10, 2, 64));
  cache.advance_position(3);
  cache.advance_position(7);
  EXPECT_EQ(cache.position(), 10);
  EXPECT_TRUE(cache.is_full());
  EXPECT_EQ(cache.remaining_capacity(), 0);
}

TEST_F(KVCacheTest, OverflowSingle) {
  KVCache cache(config_of(2, 10, 2, 64));
  cache.advance_position(10);
  try {
    cache.advance_position(1);
    FAIL() << "past the capacity";
  } catch (const KVOverflowError& error) {
    EXPECT_STREQ(error.what(),
                 "KV cache overflow: position 11 exceeds capacity 10 (at position 10, 1 more "
                 "requested)");
  }
  EXPECT_EQ(cache.position(), 10);
}

TEST_F(KVCacheTest, OverflowMultiple) {
  KVCache cache(config_of(2, 10, 2, 64));
  cache.advance_position(8);
  EXPECT_THROW(cache.advance_position(3), std::out_of_range);
  const Status status = cache.try_advance(std::numeric_limits<int>::max());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(cache.position(), 8);
  EXPECT_EQ(cache.remaining_capacity(), 2);
}

TEST_F(KVCacheTest, InvalidAdvanceZeroAndNegative) {
  KVCache cache(config_of(2, 10, 2, 64));
  cache.advance_position(4);
  for (const int n : {0, -1, std::numeric_limits<int>::min()}) {
    EXPECT_THROW(cache.advance_position(n), std::invalid_argument);
    EXPECT_EQ(cache.try_advance(n).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(cache.position(), 4);
  }
}

TEST_F(KVCacheTest, ResetPosition) {
  KVCache cache(config_of(2, 10, 2, 64));
  cache.advance_position(10);
  cache.reset();
  EXPECT_EQ(cache.position(), 0);
  EXPECT_EQ(cache.remaining_capacity(), 10);
  cache.advance_position(10);
  EXPECT_TRUE(cache.is_full());
}

TEST_F(KVCacheTest, ResetMemoryIsInTheOrderOfTheStream) {
  KVCache cache(config_of(32, 4096, 8, 128));  // 512 MiB: the zeros take a while
  const std::size_t bytes = static_cast<std::size_t>(cache.size_bytes());
  must(device::cuda::fill_async(cache.keys(0).data, 0xFF, bytes, stream()));
  cache.reset(stream());
  must(device::cuda::fill_async(cache.keys(0).data, 0x21, 64, stream()));
  const Bytes last = download(cache.values(31).data, 1 << 20);
  EXPECT_TRUE(all_zero(last));
  EXPECT_EQ(download(cache.keys(0).data, 65)[63], 0x21);
  EXPECT_EQ(download(cache.keys(0).data, 65)[64], 0);
}

}  // namespace
}  // namespace quire::kv_cache::cuda
