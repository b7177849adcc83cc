// Which experts rows take on a GPU, their places, and the sums of what experts make of them.
// Oracles: the CPU's rule, and sums in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/test_util.h"
#include "quire/model/layer_plan.h"
#include "quire/model/routing.h"

namespace quire::model::cuda {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::to_status;
using device::cuda::test::must;
using enum RouterRule;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The choice of rows, [rows, chosen].
struct Chosen {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

class ExpertRouting : public device::cuda::test::GpuTest {
 protected:
  Chosen choose(const Experts& experts, const std::vector<float>& bias,
                const std::vector<float>& logits) {
    const auto rows = static_cast<std::int64_t>(logits.size()) / experts.count;
    Chosen chosen;
    chosen.ids.resize(static_cast<std::size_t>(rows * experts.chosen));
    chosen.weights.resize(chosen.ids.size());
    const auto there = upload(logits), bias_there = upload(bias);
    const auto ids = upload(chosen.ids);
    const auto weights = upload(chosen.weights);
    must(to_status(
        kernels::cuda::choose_experts(
            {.logits = there.data(),
             .rows = rows,
             .experts = experts.count,
             .chosen = experts.chosen,
             .groups = experts.groups,
             .chosen_groups = experts.chosen_groups,
             .by_sigmoid = experts.rule == kSigmoidOfAll || experts.rule == kSigmoidOfChosen,
             .of_chosen = experts.rule == kSoftmaxOfChosen || experts.rule == kSigmoidOfChosen,
             .sum_epsilon = experts.sum_epsilon,
             .weight_scale = experts.weight_scale,
             .bias = bias.empty() ? nullptr : bias_there.data(),
             .ids = ids.data(),
             .weights = weights.data()},
            stream()),
        "choose_experts"));
    chosen.ids = download(ids, chosen.ids.size());
    chosen.weights = download(weights, chosen.weights.size());
    return chosen;
  }

  void expect_choice_of_the_cpu(const Experts& experts, const std::vector<float>& bias,
                                std::vector<float> logits) {
    const Chosen got = choose(experts, bias, logits);
    const auto count = static_cast<std::size_t>(experts.count);
    const auto chosen = static_cast<std::size_t>(experts.chosen);
    std::vector<std::int32_t> ids(chosen);
    std::vector<float> weights(chosen);
    for (std::size_t row = 0; row < logits.size() / count; ++row) {
      choose_experts(experts, bias, std::span(logits).subspan(row * count, count), ids, weights);
      for (std::size_t i = 0; i < chosen; ++i) {
        ASSERT_EQ(got.ids[row * chosen + i], ids[i]) << "row " << row;
        const float weight = got.weights[row * chosen + i];
        ASSERT_TRUE(std::isnan(weights[i]) ? std::isnan(weight)
                                           : std::abs(weight - weights[i]) <= 1e-6f * weights[i])
            << "row " << row << ": " << weight << ", not " << weights[i];
      }
    }
  }
};

TEST_F(ExpertRouting, ChoosesAsTheCpuDoes) {
  for (const RouterRule rule : {kSoftmaxOfAll, kSoftmaxOfChosen, kSigmoidOfAll, kSigmoidOfChosen}) {
    for (const auto& [count, chosen] :
         {std::pair{1, 1}, {3, 3}, {8, 2}, {128, 8}, {513, 22}, {1024, 4}}) {
      const Experts experts = {
          .count = count, .chosen = chosen, .rule = rule, .sum_epsilon = 1e-3, .weight_scale = 2.5};
      expect_choice_of_the_cpu(experts, {}, kernels::test::random_floats(7, count, 3));
    }
  }
  const Experts biased = {
      .count = 32, .chosen = 4, .rule = kSigmoidOfChosen, .biases_choice = true};
  expect_choice_of_the_cpu(biased, kernels::test::random_floats(32, 4),
                           kernels::test::random_floats(9, 32, 5));
}

TEST_F(ExpertRouting, TiesGoToLowerIdsAndNaNToTheFront) {
  std::mt19937 random(1);
  for (const RouterRule rule : {kSoftmaxOfAll, kSoftmaxOfChosen, kSigmoidOfChosen}) {
    const Experts experts = {.count = 40, .chosen = 6, .rule = rule};
    std::vector<float> logits(20 * 40);
    for (float& logit : logits) {
      logit = static_cast<float>(random() % 3);
    }
    logits[45] = kNaN;
    std::fill(logits.begin() + 80, logits.begin() + 120, kNaN);
    std::fill(logits.begin() + 120, logits.begin() + 160, 0.0f);
    logits[150] = -0.0f;
    expect_choice_of_the_cpu(experts, {}, logits);
  }
}

// Two values of logits make many ties, of experts and of groups.
TEST_F(ExpertRouting, GroupsAreChosenAsTheCpuDoes) {
  std::mt19937 random(2);
  for (const RouterRule rule : {kSoftmaxOfAll, kSoftmaxOfChosen, kSigmoidOfAll, kSigmoidOfChosen}) {
    for (const auto& [groups, kept] : {std::pair{4, 2}, {8, 4}, {32, 3}, {2, 1}, {4, 4}}) {
      const Experts experts = {
          .count = 64, .chosen = 4, .rule = rule, .groups = groups, .chosen_groups = kept};
      SCOPED_TRACE(testing::Message() << kept << " of " << groups << " groups");
      expect_choice_of_the_cpu(experts, {}, kernels::test::random_floats(9, 64, 3));
      std::vector<float> tied(9 * 64);
      for (float& logit : tied) {
        logit = static_cast<float>(random() % 2);
      }
      expect_choice_of_the_cpu(experts, {}, tied);
    }
  }
  const Experts biased = {.count = 256,
                          .chosen = 8,
                          .rule = kSigmoidOfChosen,
                          .weight_scale = 2.5,
                          .biases_choice = true,
                          .groups = 8,
                          .chosen_groups = 4};
  expect_choice_of_the_cpu(biased, kernels::test::random_floats(256, 4),
                           kernels::test::random_floats(9, 256, 5));
}

TEST_F(ExpertRouting, PlacesAreThoseOfTheCpu) {
  for (const int rows : {1, 5, 64, 700}) {
    const Experts experts = {.count = 24, .chosen = 3};
    const Chosen chosen = choose(experts, {}, kernels::test::random_floats(rows, experts.count, 8));
    Routing want;
    group_rows(experts, chosen.ids, chosen.weights, want);
    for (const int block_rows : {8, 32}) {
      const auto places = static_cast<std::int64_t>(chosen.ids.size());
      const std::int64_t most = kernels::cuda::most_expert_rows(places, experts.count, block_rows);
      const auto ids = upload(chosen.ids);
      const auto row_of = upload(std::vector<std::int32_t>(chosen.ids.size()));
      const auto places_of = upload(std::vector<std::int32_t>(chosen.ids.size()));
      const auto groups =
          upload(std::vector<kernels::cuda::ExpertRows>(static_cast<std::size_t>(most)));
      must(to_status(kernels::cuda::group_rows({.ids = ids.data(),
                                                .rows = rows,
                                                .experts = experts.count,
                                                .chosen = experts.chosen,
                                                .block_rows = block_rows,
                                                .row_of = row_of.data(),
                                                .places_of = places_of.data(),
                                                .groups = groups.data()},
                                               stream()),
                     "group_rows"));
      EXPECT_EQ(download(row_of, want.rows.size()), want.rows);
      EXPECT_EQ(download(places_of, want.places.size()), want.places);
      auto next = want.groups.begin();
      std::int32_t done = 0;
      for (const auto& group : download(groups, static_cast<std::size_t>(most))) {
        if (group.count == 0) {
          continue;
        }
        ASSERT_NE(next, want.groups.end());
        EXPECT_EQ(group.expert, next->expert);
        EXPECT_EQ(group.first, next->first + done);
        EXPECT_EQ(group.count, std::min(block_rows, next->rows - done));
        done += group.count;
        if (done == next->rows) {
          ++next;
          done = 0;
        }
      }
      EXPECT_EQ(next, want.groups.end()) << "every place is in a group";
    }
  }
}

TEST_F(ExpertRouting, LogitsEqualSumsInDoublePrecisionInEveryBatch) {
  constexpr int kRows = 9, kWidth = 96, kExperts = 13;
  const auto x = kernels::test::random_floats(kRows, kWidth, 1);
  const auto norm = kernels::test::random_floats(kWidth, 2);
  const auto weights = kernels::test::random_floats(kExperts, kWidth, 3);
  const auto bias = kernels::test::random_floats(kExperts, 4);
  const auto run = [&](int first, int rows) {
    const auto x_there = upload(std::vector<float>(x.begin() + first * kWidth, x.end()));
    const auto norm_there = upload(norm), weights_there = upload(weights);
    const auto bias_there = upload(bias);
    const auto logits = upload(std::vector<float>(static_cast<std::size_t>(rows * kExperts)));
    must(to_status(kernels::cuda::route({.x = x_there.data(),
                                         .norm = norm_there.data(),
                                         .epsilon = 1e-5f,
                                         .weights = weights_there.data(),
                                         .bias = bias_there.data(),
                                         .rows = rows,
                                         .width = kWidth,
                                         .experts = kExperts,
                                         .logits = logits.data()},
                                        stream()),
                   "route"));
    return download(logits, static_cast<std::size_t>(rows * kExperts));
  };
  const auto all = run(0, kRows);
  for (int row = 0; row < kRows; ++row) {
    double squares = 0;
    for (int i = 0; i < kWidth; ++i) {
      squares += double{x[row * kWidth + i]} * x[row * kWidth + i];
    }
    const double scale = 1 / std::sqrt(squares / kWidth + 1e-5);
    for (int expert = 0; expert < kExperts; ++expert) {
      double sum = bias[expert];
      for (int i = 0; i < kWidth; ++i) {
        sum += x[row * kWidth + i] * scale * norm[i] * weights[expert * kWidth + i];
      }
      EXPECT_NEAR(all[row * kExperts + expert], sum, 1e-4) << row << ", " << expert;
    }
    const auto alone = run(row, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * kExperts)) << row;
  }
}

TEST_F(ExpertRouting, ProductsAreAddedInOrderOfExperts) {
  constexpr int kRows = 3, kChosen = 2, kWidth = 1028;
  const std::vector<std::int32_t> places_of = {0, 3, 1, 4, 2, 5};
  const auto products = kernels::test::random_floats(kRows * kChosen, kWidth, 1);
  const auto weights = kernels::test::random_floats(kRows * kChosen, 2);
  const auto before = kernels::test::random_floats(kRows, kWidth, 3);
  const auto products_there = upload(products), weights_there = upload(weights);
  const auto places_there = upload(places_of);
  const auto out = upload(before);
  must(to_status(kernels::cuda::sum_experts({.products = products_there.data(),
                                             .places_of = places_there.data(),
                                             .weights = weights_there.data(),
                                             .rows = kRows,
                                             .chosen = kChosen,
                                             .width = kWidth,
                                             .out = out.data(),
                                             .accumulate = true},
                                            stream()),
                 "sum_experts"));
  const auto got = download(out, before.size());
  for (int i = 0; i < kRows * kWidth; ++i) {
    const int row = i / kWidth, column = i % kWidth;
    const auto product = [&](int index) {
      return products[places_of[row * kChosen + index] * kWidth + column];
    };
    const float sum = std::fma(weights[row * kChosen + 1], product(1),
                               std::fma(weights[row * kChosen], product(0), 0.0f));
    ASSERT_EQ(got[i], before[i] + sum) << row << ", " << column;
  }
}

}  // namespace
}  // namespace quire::model::cuda
