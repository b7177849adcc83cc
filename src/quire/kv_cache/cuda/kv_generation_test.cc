// The cache in an inference loop: prefill, decode, reuse. Earlier entries stay as they are, and no
// result depends on what the memory held before.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "quire/device/cuda/copy.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/cuda/kv_test_util.h"
#include "quire/result.h"

namespace quire::kv_cache::cuda {
namespace {

using test::Bytes;
using test::config_of;
using test::must;

std::uint64_t checksum(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t sum = 14695981039346656037ULL;  // FNV-1a
  for (std::size_t i = 0; i < bytes; ++i) {
    sum = (sum ^ data[i]) * 1099511628211ULL;
  }
  return sum;
}

class KVGenerationTest : public test::KVGpuTest {
 protected:
  // Appends `n` random tokens to every layer and counts them.
  void append(KVCache& cache, int n, Bytes& mirror) {
    for (int layer = 0; layer < cache.config().num_layers; ++layer) {
      update(cache, layer, rows_of(cache.config(), n, ++seed_), mirror);
    }
    cache.advance_position(n);
  }

  // Returns one checksum over rows [0, tokens) of all layers: what attention may read.
  static std::uint64_t context_sum(const KVCacheConfig& config, const Bytes& all, int tokens) {
    std::uint64_t sum = 0;
    const std::size_t part = static_cast<std::size_t>(config.layer_bytes());
    for (std::size_t at = 0; at < all.size(); at += part) {
      sum = sum * 31 + checksum(all.data() + at, tokens * row_bytes(config));
    }
    return sum;
  }

  static Bytes mirror_of(const KVCache& cache) {
    return Bytes(static_cast<std::size_t>(cache.size_bytes()));
  }

  // Sets all bytes of a cache to `byte`.
  void fill(const KVCache& cache, unsigned char byte) {
    must(device::cuda::fill_async(cache.keys(0).data, byte,
                                  static_cast<std::size_t>(cache.size_bytes()), stream()));
    wait();
  }

  std::uint64_t seed_ = 0;
};

TEST_F(KVGenerationTest, SequentialUpdatesDecode) {
  KVCache cache(config_of(1, 20, 4, 64));
  Bytes mirror = mirror_of(cache);
  while (!cache.is_full()) {
    append(cache, 1, mirror);
  }
  EXPECT_EQ(contents(cache), mirror);
}

TEST_F(KVGenerationTest, MultipleLayers) {
  KVCache cache(config_of(6, 32, 2, 64));
  Bytes mirror = mirror_of(cache);
  append(cache, 11, mirror);
  EXPECT_EQ(contents(cache), mirror);
}

TEST_F(KVGenerationTest, PrefillThenDecode) {
  KVCache cache(config_of(3, 64, 2, 64));
  Bytes mirror = mirror_of(cache);
  append(cache, 40, mirror);
  for (int i = 0; i < 24; ++i) {
    append(cache, 1, mirror);
  }
  EXPECT_TRUE(cache.is_full());
  EXPECT_EQ(contents(cache), mirror);
}

TEST_F(KVGenerationTest, FullGenerationCycle) {
  KVCache cache(config_of(4, 128, 8, 128));
  Bytes mirror = mirror_of(cache);
  append(cache, 100, mirror);
  EXPECT_EQ(cache.position(), 100);
  while (!cache.is_full()) {
    append(cache, 1, mirror);
  }
  EXPECT_EQ(contents(cache), mirror);
  EXPECT_THROW(append(cache, 1, mirror), std::exception);
  EXPECT_EQ(cache.position(), 128);
  EXPECT_EQ(contents(cache), mirror);
}

// A second run in the same memory gives the bits of a fresh cache, with and without zeros.
TEST_F(KVGenerationTest, ResetAndReuse) {
  for (const bool zero_fill : {true, false}) {
    KVCacheConfig config = config_of(3, 64, 2, 64);
    config.zero_fill = zero_fill;
    KVCache used(config), fresh(config);
    if (!zero_fill) {
      fill(used, 0x5A);
      fill(fresh, 0xA5);
    }
    Bytes mirror = mirror_of(used), again = mirror_of(used), first = mirror_of(used);
    append(used, 64, mirror);
    used.reset(stream());
    seed_ = 100;
    append(used, 30, again);
    seed_ = 100;
    append(fresh, 30, first);
    EXPECT_EQ(used.position(), fresh.position());
    EXPECT_EQ(context_sum(config, contents(used), 30), context_sum(config, contents(fresh), 30));
    if (zero_fill) {
      EXPECT_EQ(contents(used), first);
    }
  }
}

// Memory full of NaNs instead of zeros: what is read after an append is the same.
TEST_F(KVGenerationTest, NoResultDependsOnWhatMemoryHeld) {
  KVCacheConfig config = config_of(2, 50, 2, 80, KVDType::kBFloat16);
  config.zero_fill = false;
  std::vector<std::uint64_t> sums;
  for (const unsigned char poison : {0x00, 0xFF, 0x7F}) {
    KVCache cache(config);
    fill(cache, poison);
    Bytes mirror = mirror_of(cache);
    seed_ = 7;
    append(cache, 20, mirror);
    append(cache, 1, mirror);
    sums.push_back(context_sum(config, contents(cache), cache.position()));
    EXPECT_EQ(sums.back(), context_sum(config, mirror, cache.position()));
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

// 1000 tokens one at a time: position() is the context length, and after each step everything that
// was there before has its checksum.
TEST_F(KVGenerationTest, ThousandTokensLeaveEarlierEntriesUnchanged) {
  KVCache cache(config_of(2, 1000, 2, 32));
  const KVCacheConfig config = cache.config();
  Bytes mirror = mirror_of(cache);
  std::uint64_t before = context_sum(config, mirror, 0);
  for (int length = 1; length <= 1000; ++length) {
    append(cache, 1, mirror);
    ASSERT_EQ(cache.position(), length);
    const Bytes all = contents(cache);
    ASSERT_EQ(context_sum(config, all, length - 1), before) << length;
    before = context_sum(config, all, length);
    ASSERT_EQ(before, context_sum(config, mirror, length)) << length;
  }
  EXPECT_EQ(contents(cache), mirror);
}

// A failing step in the middle changes nothing, and the loop goes on.
TEST_F(KVGenerationTest, ARefusedStepChangesNothing) {
  KVCache cache(config_of(2, 10, 2, 64));
  Bytes mirror = mirror_of(cache);
  append(cache, 8, mirror);
  const Bytes before = contents(cache);
  const auto rows = upload(rows_of(cache.config(), 3, 1));
  const void* const data = rows.data();
  const Status refused = launch_update_kv_cache(cache.keys(1), cache.values(1), data, data,
                                                cache.position(), 3, 2, 64, stream());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "KV cache overflow: position 11 exceeds capacity 10 (at position 8, 3 more requested)");
  EXPECT_EQ(contents(cache), before);
  append(cache, 2, mirror);
  EXPECT_EQ(contents(cache), mirror);
}

}  // namespace
}  // namespace quire::kv_cache::cuda
