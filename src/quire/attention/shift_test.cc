// Chunks at shifted positions, and merged states. A chunk's keys are stored rotated to local
// positions; the query carries the shift.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "quire/attention/test_support.h"

namespace quire::attention {
namespace {

using device::Isa;
using tensor::DType;
using namespace test;  // NOLINT: this module's own test helpers

constexpr int kDim = 64, kHalf = 32, kTokens = 330;

class Shift : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!device::isa_supported(isa())) {
      GTEST_SKIP() << "this machine lacks " << device::isa_name(isa());
    }
  }
  [[nodiscard]] static Isa isa() { return std::get<0>(GetParam()); }
  [[nodiscard]] static KVKind kind() { return std::get<1>(GetParam()); }

  // Two stores of the same keys differ by the rounding of each rotated key and query. It is 2^-9
  // per element in bf16, and 2^-24 per element and per cosine in fp32. A code of fp8 is off by a
  // 28th of its number in the mean of squares, one of int4 by 0.04 here.
  [[nodiscard]] static double shift_tolerance() {
    return kind() == DType::kFloat32 ? 4e-6
           : kind() == kInt4KV       ? 0.12
           : kind() == kFp8KV        ? 0.08
                                     : 1.5e-2;
  }
};

// Returns the keys of all heads rotated as if token i stood at start + i.
std::vector<float> keys_at(std::span<const float> keys, int kv_heads, std::int64_t start) {
  std::vector<float> out;
  for (std::size_t at = 0; at < keys.size(); at += kDim) {
    const auto token = static_cast<std::int64_t>(at) / (kDim * kv_heads);
    for (const double x :
         rotated(keys.subspan(at, kDim), static_cast<double>(start + token), kHalf)) {
      out.push_back(static_cast<float>(x));
    }
  }
  return out;
}

double distance(const Output& a, const Output& b) {
  return relative_l2(a.out, std::vector<double>(b.out.begin(), b.out.end()));
}

// Stored at 0 with the query shifted back == stored at s with the query at its place.
TEST_P(Shift, ChunkAtOffsetZeroEqualsChunkInPlace) {
  const AttentionShape shape = shape_of(4, 2, kDim);
  const std::size_t size = kTokens * 2 * kDim;
  const std::vector<float> keys = random_floats(size, 1), values = random_floats(size, 2);
  const std::vector<float> q = random_queries(shape, 2, 3);
  for (const int s : {0, 1, 31, 4096, 65537, 131072}) {
    Pool pool(shape, kind(), 32, 24);
    const StoredRun local = pool.store(keys_at(keys, 2, 0), values);
    const StoredRun in_place = pool.store(keys_at(keys, 2, s), values);
    const int last = s + kTokens;
    const Problem shifted{
        .uses = {{.run = &local, .rows = {{0, last - s, kTokens}, {1, last - s + 7, 200}}}},
        .q = q,
        .half = kHalf};
    const Problem placed{
        .uses = {{.run = &in_place, .rows = {{0, last, kTokens}, {1, last + 7, 200}}}},
        .q = q,
        .half = kHalf};
    const Output a = attend({isa(), 2}, pool, shifted), b = attend({isa(), 2}, pool, placed);
    EXPECT_LE(distance(a, b), shift_tolerance()) << s;
    EXPECT_LE(worst_error(pool, shifted, a, lse_tolerance(kind(), isa())), tolerance(kind(), isa()))
        << s;
  }
}

// Compares three ways to attend to two chunks, the second used at position 330. They rotate the
// query back by the shift, rotate the keys forward, and store both chunks in place as one run. The
// wrong sign of the shift is far away.
TEST_P(Shift, QuerySideRotationEqualsKeySideAndConcatenation) {
  const AttentionShape shape = shape_of(4, 2, kDim);
  const std::size_t size = kTokens * 2 * kDim;
  const std::vector<float> k1 = random_floats(size, 4), v1 = random_floats(size, 5);
  const std::vector<float> k2 = random_floats(size, 6), v2 = random_floats(size, 7);
  Pool pool(shape, kind(), 32, 60);
  const StoredRun first = pool.store(keys_at(k1, 2, 0), v1);
  const StoredRun local = pool.store(keys_at(k2, 2, 0), v2);
  const StoredRun moved = pool.store(keys_at(k2, 2, kTokens), v2);
  std::vector<float> both_k = keys_at(k1, 2, 0), both_v = v1;
  const std::vector<float> tail = keys_at(k2, 2, kTokens);
  both_k.insert(both_k.end(), tail.begin(), tail.end());
  both_v.insert(both_v.end(), v2.begin(), v2.end());
  const StoredRun both = pool.store(both_k, both_v);

  const std::vector<float> q = random_queries(shape, 1, 8);
  const int p = 2 * kTokens;
  const auto with = [&](const StoredRun& second, int position) {
    const Problem problem{.uses = {{.run = &first, .rows = {{0, p, kTokens}}},
                                   {.run = &second, .rows = {{0, position, kTokens}}}},
                          .q = q,
                          .half = kHalf};
    return attend({isa(), 2}, pool, problem);
  };
  const Problem one_run{.uses = {{.run = &both, .rows = {{0, p, p}}}}, .q = q, .half = kHalf};
  const Output concatenated = attend({isa(), 2}, pool, one_run);
  EXPECT_LE(distance(with(local, p - kTokens), concatenated), shift_tolerance());
  EXPECT_LE(distance(with(moved, p), concatenated), shift_tolerance());
  EXPECT_GT(distance(with(local, p + kTokens), concatenated), 0.1);
}

// Random cuts of one run into entries, in random order, with empty ones between.
TEST_P(Shift, MergeDoesNotDependOnCutsOrOrder) {
  const AttentionShape shape = shape_of(2, 1, kDim);
  constexpr int kBlocks = 90;
  const int block_tokens = takes_blocks_of(kind(), 8) ? 8 : 32;
  Pool pool(shape, kind(), block_tokens, kBlocks);
  const auto size = static_cast<std::size_t>(block_tokens) * kBlocks * kDim;
  const StoredRun whole =
      pool.store(random_floats(size, 9), random_floats(size, 10));  // keys as they are: half = 0
  const StoredRun nothing;
  const std::vector<float> q = random_queries(shape, 3, 11);
  const auto seeing_all = [](const StoredRun& run) {
    return Use{.run = &run, .rows = {{0, 0, run.tokens}, {1, 0, run.tokens}, {2, 0, run.tokens}}};
  };
  const Output want = attend({isa(), 2}, pool, {.uses = {seeing_all(whole)}, .q = q});
  std::mt19937 random(12);
  // fp32 states: rounding of sums and factors only. bf16 rounds probabilities against another
  // maximum.
  const double limit = kind() == DType::kFloat32 ? 1e-6 : 6e-3;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<StoredRun> parts;
    for (int block = 0; block < kBlocks;) {
      const int count = std::min(1 + static_cast<int>(random() % 40), kBlocks - block);
      StoredRun part{.tokens = count * block_tokens};
      part.blocks.assign(whole.blocks.begin() + block, whole.blocks.begin() + block + count);
      parts.push_back(part);
      block += count;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    Problem problem{.uses = {seeing_all(nothing)}, .q = q};
    for (const StoredRun& part : parts) {
      problem.uses.push_back(seeing_all(part));
      problem.uses.push_back(seeing_all(nothing));
    }
    const Output got = attend({isa(), 2}, pool, problem);
    EXPECT_LE(distance(got, want), limit);
    for (std::size_t i = 0; i < got.lse.size(); ++i) {
      EXPECT_NEAR(got.lse[i], want.lse[i], lse_tolerance(kind(), isa()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Shift, every_case(), param_name);

}  // namespace
}  // namespace quire::attention
