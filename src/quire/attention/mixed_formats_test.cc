// Runs of several formats in one call, against dense double precision. The oracle reads the numbers
// that the codes of a run stand for. No bit of a row depends on what else is in the call.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "quire/attention/run.h"
#include "quire/attention/test_support.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {
namespace {

using device::Isa;
using tensor::DType;
using namespace test;  // NOLINT: this module's own test helpers

// A pool of each format, with runs of all. Parameter: the instruction set, and the type of the
// plain numbers.
class MixedFormats : public ::testing::TestWithParam<Param> {
 protected:
  enum Format : std::uint8_t { kPlain, kInt8, kFp8, kInt4, kFormats };

  void SetUp() override {
    if (!device::isa_supported(isa())) {
      GTEST_SKIP() << "this machine lacks " << device::isa_name(isa());
    }
    fill_pools();
  }
  [[nodiscard]] static Isa isa() { return std::get<0>(GetParam()); }

  void fill_pools() {
    pools_.clear();
    for (const KVKind kind : {std::get<1>(GetParam()), kInt8KV, kFp8KV, kInt4KV}) {
      pools_.emplace_back(shape_, kind, 32, 90);
    }
  }
  std::vector<tensor::PagedKVView> views() {
    std::vector<tensor::PagedKVView> views;
    for (Pool& pool : pools_) {
      views.push_back(pool.view());
    }
    return views;
  }

  // Attends to the uses of a problem, whose runs have these formats.
  Output attend_mixed(const Problem& problem, const std::vector<Format>& formats, int threads) {
    device::ThreadPool pool(threads);
    std::vector<Entry> entries = entries_of(problem);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].format = formats[i];
    }
    const AttentionPlan plan = make_plan(shape_, entries, 32, problem.window, threads);
    const kernels::RotaryTable rotary = table_of(plan.query_positions, problem.half);
    Output output{std::vector<float>(problem.q.size(), 7.0f),
                  std::vector<float>(problem.q.size() / shape_.head_dim, 7.0f), plan.counters,
                  false};
    AttentionScratch scratch;
    const std::vector<tensor::PagedKVView> all = views();
    run({&kernels::kernels_for(isa()), &pool},
        {.shape = shape_,
         .entries = entries,
         .plan = &plan,
         .window_tokens = problem.window,
         .q = problem.q,
         .q_stride = static_cast<std::ptrdiff_t>(shape_.heads) * shape_.head_dim,
         .rotary = &rotary,
         .out = output.out,
         .lse = output.lse,
         .views = all},
        all[0], scratch);
    return output;
  }

  // Returns what a row and head should see. Kernels of each format round queries in their own way,
  // so each run has its oracle, and all are merged by their sums.
  [[nodiscard]] Expected expected_of(const Problem& problem, const std::vector<Format>& formats,
                                     int row, int head) const {
    const KernelTable& table = attention::kernels_for(isa());
    std::vector<Expected> parts;
    Expected all{std::vector<double>(static_cast<std::size_t>(shape_.head_dim))};
    for (std::size_t i = 0; i < formats.size(); ++i) {
      const Pool& pool = pools_[formats[i]];
      const Problem part{.uses = {problem.uses[i]}, .q = problem.q, .half = problem.half};
      parts.push_back(expected(pool, part, rounds_queries(table, pool.kind()), row, head));
      all.lse = std::max(all.lse, parts.back().lse);
    }
    double sum = 0;
    for (const Expected& part : parts) {
      const double share = std::exp(part.lse - all.lse);
      sum += share;
      for (std::size_t d = 0; d < all.out.size(); ++d) {
        all.out[d] += share * part.out[d];
      }
    }
    for (double& x : all.out) {
      x /= sum;
    }
    all.lse += std::log(sum);
    return all;
  }

  // Rows of any kind may be rounded as that kind is, so the loosest tolerance holds for the sum.
  void expect_oracle(const Problem& problem, const std::vector<Format>& formats,
                     const Output& output, const std::string& what) const {
    double most = 0, most_lse = 0;
    for (const Format format : formats) {
      most = std::max(most, tolerance(pools_[format].kind(), isa()));
      most_lse = std::max(most_lse, lse_tolerance(pools_[format].kind(), isa()));
    }
    const auto heads = static_cast<std::size_t>(shape_.heads);
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    for (std::size_t pair = 0; pair < output.lse.size(); ++pair) {
      const Expected want = expected_of(problem, formats, static_cast<int>(pair / heads),
                                        static_cast<int>(pair % heads));
      EXPECT_LE(relative_l2(std::span(output.out).subspan(pair * dim, dim), want.out), most)
          << what << ", pair " << pair;
      EXPECT_NEAR(output.lse[pair], want.lse, most_lse) << what << ", pair " << pair;
    }
  }

  AttentionShape shape_ = shape_of(8, 2, 64);
  std::vector<Pool> pools_;
};

// Makes `count` rows see all of a run, from `first_row` on.
Use seen_by(const StoredRun& run, int first_row, int count) {
  Use use{.run = &run, .rows = {}};
  for (int i = 0; i < count; ++i) {
    use.rows.push_back({first_row + i, run.tokens + i, run.tokens});
  }
  return use;
}

TEST_P(MixedFormats, EqualTheOracleThatDequantisesEachRun) {
  const std::vector<std::vector<Format>> cases = {{kPlain, kInt8, kInt8, kPlain},
                                                  {kFp8, kPlain, kFp8, kPlain},
                                                  {kInt4, kInt4, kPlain, kPlain},
                                                  {kInt4, kFp8, kInt8, kPlain}};
  for (const std::vector<Format>& formats : cases) {
    for (const int tokens : {1, 33, 300, 700}) {
      for (const int rows : {1, 5, 70}) {
        const StoredRun first = pools_[formats[0]].fill(tokens, 1),
                        second = pools_[formats[1]].fill(tokens, 2),
                        third = pools_[formats[2]].fill(40, 3),
                        own = pools_[formats[3]].fill(rows, 4);
        const Problem problem{
            .uses = {seen_by(first, 0, rows), seen_by(second, 0, rows),
                     seen_by(third, rows / 2, rows - rows / 2), causal(own, 0, rows)},
            .q = random_queries(shape_, rows, 5),
            .half = 32};
        for (const int threads : {1, 3}) {
          const Output output = attend_mixed(problem, formats, threads);
          expect_oracle(problem, formats, output,
                        std::to_string(tokens) + " tokens, " + std::to_string(rows) + " rows, " +
                            std::to_string(threads) + " threads");
        }
        fill_pools();
      }
    }
  }
}

TEST_P(MixedFormats, RowsOfOneFormatHaveTheBitsThatTheyHaveAlone) {
  const int rows = 3;
  const std::vector<float> q = random_queries(shape_, kFormats * rows, 3);
  const auto part = static_cast<std::ptrdiff_t>(q.size() / kFormats);
  std::vector<StoredRun> runs;
  for (std::size_t i = 0; i < kFormats; ++i) {
    runs.push_back(
        pools_[i].fill(300 - 10 * static_cast<int>(i), 1 + static_cast<std::uint32_t>(i)));
  }
  Problem all{.uses = {}, .q = q, .half = 32};
  std::vector<float> alone;
  for (int i = 0; i < kFormats; ++i) {
    const auto at = static_cast<std::size_t>(i);
    all.uses.push_back(causal(runs[at], i * rows, rows));
    const Problem own{.uses = {causal(runs[at], 0, rows)},
                      .q = {q.begin() + i * part, q.begin() + (i + 1) * part},
                      .half = 32};
    const std::vector<float> out = attend({isa(), 1}, pools_[at], own).out;
    alone.insert(alone.end(), out.begin(), out.end());
  }
  EXPECT_EQ(attend_mixed(all, {kPlain, kInt8, kFp8, kInt4}, 2).out, alone);
}

TEST_P(MixedFormats, AnEntryWithoutItsViewIsCaught) {
  const StoredRun stored = pools_[kInt8].fill(3, 1);
  const Problem problem{
      .uses = {causal(stored, 0, 1)}, .q = random_queries(shape_, 1, 2), .half = 32};
  std::vector<Entry> entries = entries_of(problem);
  entries[0].format = 2;
  const AttentionPlan plan = make_plan(shape_, entries, 32, 0, 1);
  const kernels::RotaryTable rotary = table_of(plan.query_positions, 32);
  std::vector<float> out(problem.q.size());
  AttentionScratch scratch;
  device::ThreadPool pool(1);
  const std::array all = {pools_[kPlain].view(), pools_[kInt8].view()};
  EXPECT_DEATH(run({&kernels::kernels_for(isa()), &pool},
                   {.shape = shape_,
                    .entries = entries,
                    .plan = &plan,
                    .q = problem.q,
                    .q_stride = 8 * 64,
                    .rotary = &rotary,
                    .out = out,
                    .views = all},
                   all[0], scratch),
               "view that is not there");
}

INSTANTIATE_TEST_SUITE_P(
    All, MixedFormats,
    ::testing::Combine(::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512,
                                         Isa::kAmx),
                       ::testing::Values(KVKind(DType::kBFloat16), KVKind(DType::kFloat32))),
    param_name);

}  // namespace
}  // namespace quire::attention
