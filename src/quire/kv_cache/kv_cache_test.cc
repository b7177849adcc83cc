// Tests the contiguous KV cache without a GPU: sizes, refusals, positions, the tracker and the
// reference of the kernel. A missing device is an error with a type. cuda/*_test.cc needs a GPU.
#include "quire/kv_cache.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/kv_cache/kv_update.h"
#include "quire/result.h"

namespace quire {
namespace {

constexpr int kNoSuchDevice = 999;

KVCacheConfig config_of(int layers, int context, int heads, int dim) {
  return {
      .num_layers = layers, .max_context_length = context, .num_kv_heads = heads, .head_dim = dim};
}

TEST(KVCacheSize, DocumentFigures) {
  EXPECT_EQ(config_of(24, 2048, 2, 64).size_bytes(), 25'165'824);
  EXPECT_EQ(config_of(32, 4096, 8, 128).size_bytes(), 536'870'912);
}

TEST(KVCacheSize, SingleElement) { EXPECT_EQ(config_of(1, 1, 1, 1).size_bytes(), 4); }

TEST(KVCacheSize, GrowsWithTheDType) {
  KVCacheConfig config = config_of(2, 10, 3, 32);
  for (const auto& [dtype, bytes] : {std::pair{KVDType::kFloat32, 4},
                                     {KVDType::kFloat16, 2},
                                     {KVDType::kBFloat16, 2},
                                     {KVDType::kFloat8E4M3, 1}}) {
    config.dtype = dtype;
    EXPECT_EQ(config.size_bytes(), std::int64_t{2} * 2 * 10 * 3 * 32 * bytes);
    EXPECT_EQ(config.layer_bytes(), std::int64_t{10} * 3 * 32 * bytes);
  }
}

TEST(KVCacheSize, IsComputedIn64Bits) {
  EXPECT_EQ(config_of(128, 1 << 20, 64, 256).size_bytes(), std::int64_t{1} << 43);
}

TEST(KVCacheConfig, InvalidFieldsAreNamed) {
  const auto message = [](KVCacheConfig config) {
    const Status status = config.validate();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THROW(KVCache{config}, std::invalid_argument);
    return status.error().message;
  };
  EXPECT_EQ(message(config_of(0, 1, 1, 1)), "num_layers of a KV cache is 0, at least 1");
  EXPECT_EQ(message(config_of(1, -3, 1, 1)), "max_context_length of a KV cache is -3, at least 1");
  EXPECT_EQ(message(config_of(1, 1, 0, 1)), "num_kv_heads of a KV cache is 0, at least 1");
  EXPECT_EQ(message(config_of(1, 1, 1, 0)), "head_dim of a KV cache is 0, at least 1");
  EXPECT_NE(message(config_of(INT_MAX, INT_MAX, INT_MAX, 1)).find("larger than 2^63"),
            std::string::npos);
  KVCacheConfig config = config_of(1, 1, 1, 1);
  config.dtype = static_cast<KVDType>(9);
  EXPECT_NE(message(config).find("dtype of a KV cache is 9"), std::string::npos);
  config = config_of(1, 1, 1, 1);
  config.device = -1;
  EXPECT_NE(message(config).find("device of a KV cache is -1"), std::string::npos);
}

// True with and without CUDA, and with and without a driver.
TEST(KVCacheWithoutDevice, IsATypedErrorAndNothingIsCharged) {
  KVCacheConfig config = config_of(1, 10, 1, 32);
  config.device = kNoSuchDevice;
  VramTracker tracker;
  const auto cache = KVCache::create(config, &tracker);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::kDevice);
  EXPECT_EQ(tracker.used_bytes(), 0);
  try {
    const KVCache thrown(config, &tracker);
    FAIL() << "no device, but a cache";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.error().code, ErrorCode::kDevice);
    EXPECT_EQ(error.error().message, error.what());
  }
  EXPECT_EQ(tracker.used_bytes(), 0);
}

TEST(KVPosition, AdvanceToTheCapacityAndNoFurther) {
  EXPECT_TRUE(kv_cache::check_kv_advance(0, 10, 10).ok());
  EXPECT_TRUE(kv_cache::check_kv_advance(9, 1, 10).ok());
  const Status status = kv_cache::check_kv_advance(10, 1, 10);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(status.error().message,
            "KV cache overflow: position 11 exceeds capacity 10 (at position 10, 1 more "
            "requested)");
}

TEST(KVPosition, HugeAdvanceDoesNotWrapAround) {
  const Status status = kv_cache::check_kv_advance(10, INT_MAX, 20);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("position 2147483657 exceeds capacity 20"),
            std::string::npos);
}

TEST(KVPosition, ZeroAndNegativeAreRefused) {
  for (const int n : {0, -1, INT_MIN}) {
    EXPECT_EQ(kv_cache::check_kv_advance(3, n, 10).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(KVOverflow, IsAnOutOfRange) {
  EXPECT_TRUE((std::is_base_of_v<std::out_of_range, KVOverflowError>));
}

TEST(VramTracker, CountsUpAndDownAndRemembersThePeak) {
  VramTracker tracker(100);
  EXPECT_TRUE(tracker.reserve(60).ok());
  EXPECT_TRUE(tracker.reserve(40).ok());
  tracker.release(60);
  EXPECT_EQ(tracker.used_bytes(), 40);
  EXPECT_EQ(tracker.peak_bytes(), 100);
}

TEST(VramTracker, RefusesPastTheLimitAndChangesNothing) {
  VramTracker tracker(100);
  EXPECT_TRUE(tracker.reserve(60).ok());
  const Status status = tracker.reserve(41);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(status.error().needed_bytes, 41);
  EXPECT_EQ(status.error().free_bytes, 40);
  EXPECT_EQ(tracker.used_bytes(), 60);
  EXPECT_EQ(tracker.peak_bytes(), 60);
}

TEST(VramTracker, ThreadsLoseNothing) {
  VramTracker tracker;
  const auto work = [&tracker] {
    for (int i = 0; i < 10'000; ++i) {
      EXPECT_TRUE(tracker.reserve(3).ok());
      tracker.release(3);
    }
  };
  std::thread a(work), b(work);
  a.join();
  b.join();
  EXPECT_EQ(tracker.used_bytes(), 0);
}

class KVUpdateTest : public ::testing::Test {
 protected:
  KVUpdateTest() : cache_(2 * kCapacity * kRow, 0xCC), rows_(4 * kRow) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i] = static_cast<std::uint8_t>(i * 7);
    }
    update_ = {.dtype = KVDType::kFloat8E4M3,
               .cache_keys = cache_.data(),
               .cache_values = cache_.data() + kCapacity * kRow,
               .new_keys = rows_.data(),
               .new_values = rows_.data() + 2 * kRow,
               .position = 3,
               .num_tokens = 2,
               .num_heads = 2,
               .head_dim = 5,
               .capacity = {kCapacity}};
  }

  [[nodiscard]] ErrorCode code() const {
    const Status status = kv_cache::check_kv_update(update_);
    return status.ok() ? ErrorCode::kInternal : status.error().code;  // kInternal: none
  }

  static constexpr int kRow = 10, kCapacity = 6;
  std::vector<std::uint8_t> cache_, rows_;
  KVUpdate update_;
};

TEST_F(KVUpdateTest, ReferenceWritesRowsAtThePositionAndNothingElse) {
  ASSERT_TRUE(kv_cache::check_kv_update(update_).ok());
  kv_cache::update_kv_reference(update_);
  for (int i = 0; i < 2 * kCapacity * kRow; ++i) {
    const int token = i / kRow % kCapacity, which = i / (kRow * kCapacity);
    const bool written = token == 3 || token == 4;
    const auto expected = written ? rows_[(which * 2 + token - 3) * kRow + i % kRow] : 0xCC;
    ASSERT_EQ(cache_[i], expected) << i;
  }
}

TEST_F(KVUpdateTest, ReferenceRefusesAPositionOnTheDeviceThatDoesNotFit) {
  const std::int32_t position = 5;
  std::int32_t refusals = 0;
  update_.device_position = &position;
  update_.device_refusals = &refusals;
  const auto before = cache_;
  kv_cache::update_kv_reference(update_);
  EXPECT_EQ(cache_, before);
  EXPECT_EQ(refusals, 1);
}

TEST_F(KVUpdateTest, WhatDoesNotFitIsAnOverflow) {
  update_.position = 4;
  EXPECT_EQ(code(), ErrorCode::kInternal);
  update_.position = 5;
  EXPECT_EQ(code(), ErrorCode::kOverflow);
  update_.position = INT_MAX;
  EXPECT_EQ(code(), ErrorCode::kOverflow);
  update_.capacity = {};  // the document's form: only the caller knows
  EXPECT_EQ(code(), ErrorCode::kInternal);
}

TEST_F(KVUpdateTest, BadCountsAndPointersAreRefused) {
  const KVUpdate good = update_;
  const auto refused = [&](auto change) {
    update_ = good;
    change(update_);
    EXPECT_EQ(code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(update_kv_cache(update_).error().code, ErrorCode::kInvalidArgument);
  };
  refused([](KVUpdate& u) { u.num_tokens = 0; });
  refused([](KVUpdate& u) { u.num_tokens = -1; });
  refused([](KVUpdate& u) { u.num_heads = 0; });
  refused([](KVUpdate& u) { u.head_dim = -5; });
  refused([](KVUpdate& u) { u.position = -1; });
  refused([](KVUpdate& u) { u.cache_keys = nullptr; });
  refused([](KVUpdate& u) { u.cache_values = nullptr; });
  refused([](KVUpdate& u) { u.new_keys = nullptr; });
  refused([](KVUpdate& u) { u.new_values = nullptr; });
  refused([](KVUpdate& u) { u.num_heads = u.head_dim = 1 << 20; });
  refused([](KVUpdate& u) {  // more bytes than 63 bits can say
    u.dtype = KVDType::kFloat32;
    u.num_heads = u.head_dim = INT_MAX;
  });
  refused([this](KVUpdate& u) {
    u.dtype = KVDType::kFloat32;
    u.new_keys = rows_.data() + 1;
  });
}

TEST_F(KVUpdateTest, ViewsMustAgreeWithEachOtherAndWithTheRows) {
  const KVLayerView view = {.data = cache_.data(),
                            .dtype = KVDType::kFloat8E4M3,
                            .capacity = kCapacity,
                            .num_heads = 2,
                            .head_dim = 5};
  const void* const rows = rows_.data();
  const auto code_of = [&](const KVLayerView& values, int position, int heads) {
    return launch_update_kv_cache(view, values, rows, rows, position, 1, heads, 5).error().code;
  };
  EXPECT_EQ(code_of(view, 0, 3), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(view, kCapacity, 2), ErrorCode::kOverflow);
  KVLayerView other = view;
  other.dtype = KVDType::kFloat16;
  EXPECT_EQ(code_of(other, 0, 2), ErrorCode::kInvalidArgument);
  const auto* const floats = reinterpret_cast<const float*>(rows_.data());
  EXPECT_EQ(launch_update_kv_cache(view, view, floats, floats, 0, 1, 2, 5).error().message,
            "cannot update a cache of float8_e4m3 with rows of float32; convert the rows first");
}

// Every form of launch_update_kv_cache takes its types, and a stream written 0 stays a stream.
TEST_F(KVUpdateTest, DocumentFormsCompile) {
  float* const null = nullptr;
  const float* const rows = nullptr;
  EXPECT_FALSE(launch_update_kv_cache(null, null, rows, rows, 0, 1, 8, 128).ok());
  EXPECT_FALSE(launch_update_kv_cache(null, null, rows, rows, 0, 1, 8, 128, 0).ok());
  EXPECT_FALSE(launch_update_kv_cache(null, null, rows, rows, 0, 1, 8, 128, KVCapacity{4}).ok());
  __half* const half_null = nullptr;
  EXPECT_FALSE(launch_update_kv_cache(half_null, half_null, half_null, half_null, 0, 1, 8, 128,
                                      KVCapacity{4}, nullptr)
                   .ok());
}

}  // namespace
}  // namespace quire
