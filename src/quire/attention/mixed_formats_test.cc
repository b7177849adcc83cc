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

// A pool of plain numbers and one of codes, with runs of both. Parameter: the instruction set, and
// the type of the plain numbers.
class MixedFormats : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!device::isa_supported(isa())) {
      GTEST_SKIP() << "this machine lacks " << device::isa_name(isa());
    }
  }
  [[nodiscard]] static Isa isa() { return std::get<0>(GetParam()); }
  [[nodiscard]] static KVKind plain_kind() { return std::get<1>(GetParam()); }
  [[nodiscard]] static KVKind coded_kind() { return kInt8KV; }

  // Attends to the uses of a problem. `coded` says which of them are runs of codes.
  Output attend_mixed(const Problem& problem, const std::vector<bool>& coded, int threads) {
    const AttentionShape& shape = plain_.shape();
    device::ThreadPool pool(threads);
    std::vector<Entry> entries = entries_of(problem);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].format = coded[i] ? 1 : 0;
    }
    const AttentionPlan plan =
        make_plan(shape, entries, plain_.view().block_tokens, problem.window, threads);
    const kernels::RotaryTable rotary = table_of(plan.query_positions, problem.half);
    Output output{std::vector<float>(problem.q.size(), 7.0f),
                  std::vector<float>(problem.q.size() / shape.head_dim, 7.0f), plan.counters,
                  false};
    AttentionScratch scratch;
    const std::array views = {plain_.view(), coded_.view()};
    run({&kernels::kernels_for(isa()), &pool},
        {.shape = shape,
         .entries = entries,
         .plan = &plan,
         .window_tokens = problem.window,
         .q = problem.q,
         .q_stride = static_cast<std::ptrdiff_t>(shape.heads) * shape.head_dim,
         .rotary = &rotary,
         .out = output.out,
         .lse = output.lse,
         .views = views},
        views[0], scratch);
    return output;
  }

  // Returns the part of a problem whose uses are of codes, or of plain numbers.
  static Problem part_of(const Problem& problem, const std::vector<bool>& coded, bool of_codes) {
    Problem part{.uses = {}, .q = problem.q, .half = problem.half};
    for (std::size_t i = 0; i < problem.uses.size(); ++i) {
      if (coded[i] == of_codes) {
        part.uses.push_back(problem.uses[i]);
      }
    }
    return part;
  }

  // Returns what a row and head should see. Kernels of each format round queries in their own way,
  // so each format has its oracle, and both are merged by their sums.
  [[nodiscard]] Expected expected_of(const Problem& plain, const Problem& coded, int row,
                                     int head) const {
    const KernelTable& table = attention::kernels_for(isa());
    const Expected a = expected(plain_, plain, rounds_queries(table, plain_kind()), row, head);
    const Expected b = expected(coded_, coded, rounds_queries(table, coded_kind()), row, head);
    const double top = std::max(a.lse, b.lse);
    const double of_a = std::exp(a.lse - top), of_b = std::exp(b.lse - top);
    Expected both{std::vector<double>(a.out.size()), top + std::log(of_a + of_b)};
    for (std::size_t d = 0; d < a.out.size(); ++d) {
      both.out[d] = (of_a * a.out[d] + of_b * b.out[d]) / (of_a + of_b);
    }
    return both;
  }

  // Rows of either kind may be rounded as that kind is, so the looser tolerance holds for the sum.
  void expect_oracle(const Problem& problem, const std::vector<bool>& coded, const Output& output,
                     const std::string& what) const {
    const double tolerance = std::max(attention::tolerance(plain_kind(), isa()),
                                      attention::tolerance(coded_kind(), isa()));
    const double most_lse =
        std::max(lse_tolerance(plain_kind(), isa()), lse_tolerance(coded_kind(), isa()));
    const Problem of_plain = part_of(problem, coded, false),
                  of_codes = part_of(problem, coded, true);
    const auto heads = static_cast<std::size_t>(plain_.shape().heads);
    const auto dim = static_cast<std::size_t>(plain_.shape().head_dim);
    for (std::size_t pair = 0; pair < output.lse.size(); ++pair) {
      const Expected want = expected_of(of_plain, of_codes, static_cast<int>(pair / heads),
                                        static_cast<int>(pair % heads));
      EXPECT_LE(relative_l2(std::span(output.out).subspan(pair * dim, dim), want.out), tolerance)
          << what << ", pair " << pair;
      EXPECT_NEAR(output.lse[pair], want.lse, most_lse) << what << ", pair " << pair;
    }
  }

  Pool plain_{shape_of(8, 2, 64), plain_kind(), 32, 90};
  Pool coded_{shape_of(8, 2, 64), coded_kind(), 32, 60};
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
  for (const int tokens : {1, 33, 300, 700}) {
    for (const int rows : {1, 5, 70}) {
      const StoredRun first = plain_.fill(tokens, 1), second = coded_.fill(tokens, 2),
                      third = coded_.fill(40, 3), own = plain_.fill(rows, 4);
      const Problem problem{
          .uses = {seen_by(first, 0, rows), seen_by(second, 0, rows),
                   seen_by(third, rows / 2, rows - rows / 2), causal(own, 0, rows)},
          .q = random_queries(plain_.shape(), rows, 5),
          .half = 32};
      const std::vector<bool> coded = {false, true, true, false};
      for (const int threads : {1, 3}) {
        const Output output = attend_mixed(problem, coded, threads);
        expect_oracle(problem, coded, output,
                      std::to_string(tokens) + " tokens, " + std::to_string(rows) + " rows, " +
                          std::to_string(threads) + " threads");
      }
      plain_ = Pool{shape_of(8, 2, 64), plain_kind(), 32, 90};
      coded_ = Pool{shape_of(8, 2, 64), coded_kind(), 32, 60};
    }
  }
}

TEST_P(MixedFormats, RowsOfOneFormatHaveTheBitsThatTheyHaveAlone) {
  const StoredRun coded = coded_.fill(300, 1), plain = plain_.fill(290, 2);
  const int rows = 3;
  const std::vector<float> q = random_queries(plain_.shape(), 2 * rows, 3);
  const Problem both{
      .uses = {causal(coded, 0, rows), causal(plain, rows, rows)}, .q = q, .half = 32};
  const Output together = attend_mixed(both, {true, false}, 2);
  const auto half = static_cast<std::ptrdiff_t>(q.size() / 2);
  const Problem codes_alone{
      .uses = {causal(coded, 0, rows)}, .q = {q.begin(), q.begin() + half}, .half = 32};
  const Problem plain_alone{
      .uses = {causal(plain, 0, rows)}, .q = {q.begin() + half, q.end()}, .half = 32};
  const Output of_codes = attend({isa(), 1}, coded_, codes_alone);
  const Output of_plain = attend({isa(), 1}, plain_, plain_alone);
  std::vector<float> expected = of_codes.out;
  expected.insert(expected.end(), of_plain.out.begin(), of_plain.out.end());
  EXPECT_EQ(together.out, expected);
}

TEST_P(MixedFormats, AnEntryWithoutItsViewIsCaught) {
  const StoredRun stored = coded_.fill(3, 1);
  const Problem problem{
      .uses = {causal(stored, 0, 1)}, .q = random_queries(plain_.shape(), 1, 2), .half = 32};
  std::vector<Entry> entries = entries_of(problem);
  entries[0].format = 2;
  const AttentionPlan plan = make_plan(plain_.shape(), entries, 32, 0, 1);
  const kernels::RotaryTable rotary = table_of(plan.query_positions, 32);
  std::vector<float> out(problem.q.size());
  AttentionScratch scratch;
  device::ThreadPool pool(1);
  const std::array views = {plain_.view(), coded_.view()};
  EXPECT_DEATH(run({&kernels::kernels_for(isa()), &pool},
                   {.shape = plain_.shape(),
                    .entries = entries,
                    .plan = &plan,
                    .q = problem.q,
                    .q_stride = 8 * 64,
                    .rotary = &rotary,
                    .out = out,
                    .views = views},
                   views[0], scratch),
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
