// Attention against dense double precision: dtypes, head sizes, GQA ratios, windows, empty rows,
// poison. All slots that were never written hold NaN in every test.
#include "quire/attention/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <tuple>

#include "quire/attention/test_support.h"

namespace quire::attention {
namespace {

using device::Isa;
using tensor::DType;
using namespace test;  // NOLINT: this module's own test helpers

class Attention : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!device::isa_supported(isa())) {
      GTEST_SKIP() << "this machine lacks " << device::isa_name(isa());
    }
  }
  [[nodiscard]] static Isa isa() { return std::get<0>(GetParam()); }
  [[nodiscard]] static KVKind kind() { return std::get<1>(GetParam()); }

  static void expect_close(const Pool& pool, const Problem& problem, const Output& output,
                           const std::string& what) {
    EXPECT_LE(worst_error(pool, problem, output, lse_tolerance(kind(), isa())),
              tolerance(kind(), isa()))
        << what;
  }
};

TEST_P(Attention, MatchesDoublePrecisionForEveryHeadSize) {
  for (const int dim : {8, 16, 32, 40, 64, 80, 96, 128, 256}) {
    for (const int tokens : {1, 31, 32, 33, 255, 256, 257, 700}) {
      Pool pool(shape_of(6, 2, dim), kind(), 32, 24);
      const StoredRun kv = pool.fill(tokens, 1);
      const int rows = std::min(tokens, 5);
      const Problem problem{.uses = {causal(kv, 0, rows)},
                            .q = random_queries(pool.shape(), rows, 2),
                            .half = dim / 2};
      expect_close(pool, problem, attend({isa(), 2}, pool, problem),
                   std::to_string(dim) + " dims, " + std::to_string(tokens) + " tokens");
    }
  }
}

// Heads of latents are a rotated part and the latent.
TEST_P(Attention, MatchesDoublePrecisionForTheLargestHeads) {
  for (const int dim : {512, 576}) {
    Pool pool(shape_of(20, 1, dim), kind(), 32, 10);
    const StoredRun kv = pool.fill(dim - 279, 1);
    const Problem problem{
        .uses = {causal(kv, 0, 2)}, .q = random_queries(pool.shape(), 2, 2), .half = 32};
    expect_close(pool, problem, attend({isa(), 2}, pool, problem), std::to_string(dim) + " dims");
  }
}

TEST_P(Attention, MatchesDoublePrecisionForEveryRatioOfHeads) {
  for (const int kv_heads : {1, 2}) {
    for (const int group : {1, 2, 3, 7, 8, 32, 33, 64}) {
      Pool pool(shape_of(group * kv_heads, kv_heads, 32), kind(), 32, 12);
      const StoredRun kv = pool.fill(300, 3);
      const Problem problem{
          .uses = {causal(kv, 0, 11)}, .q = random_queries(pool.shape(), 11, 4), .half = 16};
      expect_close(pool, problem, attend({isa(), 2}, pool, problem),
                   std::to_string(group) + " x " + std::to_string(kv_heads));
    }
  }
}

TEST_P(Attention, RotatesOnlyTheRotaryPartOfAHead) {
  for (const int half : {0, 1, 5, 16, 40}) {
    Pool pool(shape_of(4, 2, 80), kind(), 32, 4);
    const StoredRun kv = pool.fill(50, 5);
    Problem problem{
        .uses = {causal(kv, 0, 4)}, .q = random_queries(pool.shape(), 4, 6), .half = half};
    for (EntryRow& row : problem.uses[0].rows) {
      row.query_position += 1000;
    }
    expect_close(pool, problem, attend({isa(), 1}, pool, problem), std::to_string(half));
  }
}

TEST_P(Attention, UsesTheGivenSoftmaxScale) {
  AttentionShape shape = shape_of(4, 1, 64);
  for (const double scale : {0.01, 0.5, 3.0}) {
    shape.softmax_scale = scale;
    Pool pool(shape, kind(), 32, 4);
    const StoredRun kv = pool.fill(70, 7);
    const Problem problem{.uses = {causal(kv, 0, 3)}, .q = random_queries(shape, 3, 8), .half = 32};
    const Output output = attend({isa(), 1}, pool, problem);
    // Errors of a score grow with its size: up to 3 * 64 * 2 here.
    const double most_lse = std::max(1e-2, 20 * lse_tolerance(kind(), isa()));
    EXPECT_LE(worst_error(pool, problem, output, most_lse), 10 * tolerance(kind(), isa())) << scale;
  }
}

// Runs from caps that no score comes near to caps that all reach; with and without a window.
TEST_P(Attention, CapsScoresBeforeTheSoftmax) {
  AttentionShape shape = shape_of(4, 2, 64);
  for (const double cap : {0.1, 1.0, 50.0}) {
    shape.soft_cap = cap;
    for (const int window : {0, 100}) {
      Pool pool(shape, kind(), 32, 24);
      const StoredRun kv = pool.fill(700, 17);
      const Problem problem{.uses = {causal(kv, 0, 45)},
                            .q = random_queries(shape, 45, 18),
                            .window = window,
                            .half = 32};
      expect_close(pool, problem, attend({isa(), 2}, pool, problem), std::to_string(cap));
    }
  }
}

// One sink for each head, from far below all scores to far above them, whatever the cuts into
// pieces and entries.
TEST_P(Attention, ASinkJoinsTheSoftmaxOnce) {
  const AttentionShape shape = shape_of(4, 2, 64);
  for (const int tokens : {1, 600}) {
    for (const int window : {0, 100}) {
      Pool pool(shape, kind(), 32, 48);
      const StoredRun first = pool.fill(tokens, 31), second = pool.fill(tokens, 33);
      const int rows = std::min(tokens, 8);
      Problem problem{.uses = {causal(first, 0, rows), causal(second, 0, rows)},
                      .q = random_queries(shape, rows, 32),
                      .window = window,
                      .half = 32,
                      .sinks = {-40.0f, 0.0f, 1.5f, 30.0f}};
      expect_close(pool, problem, attend({isa(), 2}, pool, problem), std::to_string(tokens));
      problem.uses.pop_back();
      expect_close(pool, problem, attend({isa(), 2}, pool, problem), std::to_string(tokens));
    }
  }
  Pool pool(shape, kind(), 32, 4);
  const StoredRun empty;
  const Problem problem{.uses = {{.run = &empty, .rows = {{0, 0, 0}}}},
                        .q = random_queries(shape, 1, 16),
                        .half = 32,
                        .sinks = {1, 1, 1, 1}};
  EXPECT_EQ(attend({isa(), 2}, pool, problem).out, std::vector<float>(256, 0.0f));
}

// Scores some hundred apart: many probabilities are below the smallest normal number.
TEST_P(Attention, ScoresFarApartLeaveTheCallersArithmeticAsItWas) {
  AttentionShape shape = shape_of(4, 1, 64);
  shape.softmax_scale = 8;
  Pool pool(shape, kind(), 32, 20);
  const StoredRun kv = pool.fill(600, 27);
  const Problem problem{.uses = {causal(kv, 0, 9)}, .q = random_queries(shape, 9, 28), .half = 32};
  const Output output = attend({isa(), 1}, pool, problem);
  if (kind() == DType::kFloat32) {
    EXPECT_LE(worst_error(pool, problem, output, 1e-2), 100 * tolerance(kind(), isa()));
  }
  EXPECT_TRUE(std::ranges::all_of(output.out, [](float x) { return std::isfinite(x); }));
  volatile float smallest = std::numeric_limits<float>::min();
  EXPECT_GT(smallest * 0.5f, 0.0f);
}

TEST_P(Attention, MatchesDoublePrecisionInsideAWindow) {
  for (const int window : {1, 2, 31, 32, 33, 100, 256, 300, 5000}) {
    Pool pool(shape_of(4, 2, 64), kind(), 32, 20);
    const StoredRun kv = pool.fill(600, 9);
    const Problem problem{.uses = {causal(kv, 0, 45)},
                          .q = random_queries(pool.shape(), 45, 10),
                          .window = window,
                          .half = 32};
    expect_close(pool, problem, attend({isa(), 2}, pool, problem), std::to_string(window));
  }
}

// Blocks that every row's window hides are gone: id -1, and their old bytes belong to others.
TEST_P(Attention, NeverReadsBlocksFreedBehindTheWindow) {
  for (const int block_tokens : {1, 5, 16, 32, 64}) {
    for (const int window : {1, 40, 300}) {
      if (!takes_blocks_of(kind(), block_tokens)) {
        continue;
      }
      Pool pool(shape_of(4, 2, 32), kind(), block_tokens, 620);
      const StoredRun kv = pool.fill(600, 11);
      Problem problem{.uses = {causal(kv, 0, 9)},
                      .q = random_queries(pool.shape(), 9, 12),
                      .window = window,
                      .half = 16};
      const Output whole = attend({isa(), 2}, pool, problem);
      Use& use = problem.uses[0];
      use.blocks = kv.blocks;
      const int first_seen = std::max(0, use.rows[0].query_position - window + 1);
      std::fill_n(use.blocks.begin(), first_seen / block_tokens, -1);
      EXPECT_EQ(attend({isa(), 2}, pool, problem), whole) << block_tokens << " " << window;
      expect_close(pool, problem, whole, std::to_string(window));
    }
  }
}

// Rows of one tile far apart under a short window: what lies between them is seen by nobody.
TEST_P(Attention, NeverReadsBlocksBetweenTheWindowsOfATile) {
  for (const int block_tokens : {3, 32, 64}) {
    if (!takes_blocks_of(kind(), block_tokens)) {
      continue;
    }
    Pool pool(shape_of(2, 1, 32), kind(), block_tokens, 400);
    const StoredRun kv = pool.fill(1000, 13);
    Use use{.run = &kv, .rows = {{0, 20, 21}, {1, 150, 151}, {2, 990, 991}}, .blocks = kv.blocks};
    const auto free_between = [&](int end, int begin) {
      for (int i = (end + block_tokens - 1) / block_tokens; i < begin / block_tokens; ++i) {
        use.blocks[i] = -1;
      }
    };
    free_between(21, 141);
    free_between(151, 981);
    const Problem problem{
        .uses = {use}, .q = random_queries(pool.shape(), 3, 14), .window = 10, .half = 16};
    for (const int threads : {1, 3}) {
      expect_close(pool, problem, attend({isa(), threads}, pool, problem),
                   std::to_string(block_tokens));
    }
  }
}

TEST_P(Attention, RowThatSeesNothingIsZeroWithMinusInfinity) {
  Pool pool(shape_of(8, 1, 64), kind(), 32, 4);
  const StoredRun kv = pool.fill(20, 15);
  const StoredRun empty;
  const Problem problem{.uses = {{.run = &kv, .rows = {{0, 5, 0}, {1, 5, 6}, {3, 100, 20}}},
                                 {.run = &empty, .rows = {{0, 0, 0}, {1, 0, 5}}}},
                        .q = random_queries(pool.shape(), 5, 16),
                        .window = 50,
                        .half = 32};
  const Output output = attend({isa(), 2}, pool, problem);
  expect_close(pool, problem, output, "");
  for (const int row : {0, 2, 3, 4}) {
    for (int head = 0; head < 8; ++head) {
      EXPECT_EQ(output.lse[row * 8 + head], -std::numeric_limits<float>::infinity());
    }
    EXPECT_TRUE(std::all_of(output.out.begin() + row * 512, output.out.begin() + (row + 1) * 512,
                            [](float x) { return x == 0.0f; }));
  }
}

TEST_P(Attention, NoEntriesGiveZeros) {
  Pool pool(shape_of(2, 1, 32), kind(), 32, 1);
  const Problem problem{.uses = {}, .q = random_queries(pool.shape(), 2, 17)};
  const Output output = attend({isa(), 2}, pool, problem);
  EXPECT_EQ(output.out, std::vector<float>(128, 0.0f));
}

// A NaN or infinity in a stored token reaches the rows that see the token, and no bit of others.
TEST_P(Attention, HiddenTokensNeverReachARow) {
  if (kind().by_block()) {
    GTEST_SKIP() << "blocks that are stored whole hold finite numbers only";
  }
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int window : {0, 25}) {
    for (const int block_tokens : {7, 32}) {
      for (const int poisoned : {255, 256, 280, 299}) {
        Pool pool(shape_of(2, 2, 32), kind(), block_tokens, 50);
        const StoredRun kv = pool.fill(300, 18);
        const Problem problem{.uses = {causal(kv, 0, 60)},
                              .q = random_queries(pool.shape(), 60, 19),
                              .window = window,
                              .half = 16};
        const Output clean = attend({isa(), 1}, pool, problem);
        for (const float poison : {kNan, kInfinity}) {
          pool.poison(kv, poisoned, poison, poison);
          const Output output = attend({isa(), 1}, pool, problem);
          for (int i = 0; i < 60; ++i) {
            const int position = 240 + i;
            const bool sees = poisoned <= position && (window == 0 || poisoned > position - window);
            const auto at = static_cast<std::ptrdiff_t>(i) * 64;
            if (sees) {
              EXPECT_TRUE(std::isnan(output.out[at])) << position;
            } else {
              EXPECT_TRUE(std::equal(output.out.begin() + at, output.out.begin() + at + 64,
                                     clean.out.begin() + at))
                  << position << " " << poisoned << " " << window << " " << block_tokens;
            }
          }
        }
      }
    }
  }
}

// The other half of the above: values of hidden tokens that are finite but huge change nothing.
TEST_P(Attention, HugeHiddenValuesChangeNoBit) {
  if (kind().by_block()) {
    GTEST_SKIP() << "a token's numbers are not stored alone";
  }
  Pool pool(shape_of(2, 2, 32), kind(), 32, 12);
  const StoredRun kv = pool.fill(300, 20);
  const Problem problem{
      .uses = {causal(kv, 0, 12)}, .q = random_queries(pool.shape(), 12, 21), .half = 16};
  const Output clean = attend({isa(), 1}, pool, problem);
  pool.poison(kv, 299, 1e30f, -3e38f);
  const Output output = attend({isa(), 1}, pool, problem);
  EXPECT_TRUE(std::equal(output.out.begin(), output.out.begin() + 11 * 64, clean.out.begin()));
}

TEST_P(Attention, ScoresFarApartNeitherOverflowNorVanish) {
  Pool pool(shape_of(1, 1, 32), kind(), 32, 20);
  pool.hidden_range = 0;  // or groups of int4 hold no zeros
  std::vector<float> k(600 * 32, 0.0f), v = random_floats(600 * 32, 22);
  for (int token = 0; token < 600; ++token) {
    k[token * 32] = token % 2 == 0 ? 4096.0f : -4096.0f;
  }
  const StoredRun kv = pool.store(k, v);
  Problem problem{.uses = {causal(kv, 0, 1)}, .q = std::vector<float>(32, 16.0f)};
  const Output output = attend({isa(), 1}, pool, problem);
  const Expected want = expected(pool, problem, output.bf16_queries, 0, 0);
  EXPECT_LE(relative_l2(output.out, want.out), tolerance(kind(), isa()));
  const double share = rounds_scaled_queries(kind(), isa()) ? 4e-3 : 1e-6;
  EXPECT_NEAR(output.lse[0], want.lse, std::abs(want.lse) * share);
}

INSTANTIATE_TEST_SUITE_P(All, Attention, every_case(), param_name);

}  // namespace
}  // namespace quire::attention
