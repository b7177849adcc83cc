// Routing: which experts a row takes, and how rows are grouped.
#include "quire/model/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "quire/model/layer_plan.h"

namespace quire::model {
namespace {

using ::testing::ElementsAre;
using ::testing::Pointwise;

struct Choice {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Choice choose(const std::vector<float>& logits, std::int32_t chosen, RouterRule rule) {
  const Experts experts = {
      .count = static_cast<std::int32_t>(logits.size()), .chosen = chosen, .rule = rule};
  Choice choice{.ids = std::vector<std::int32_t>(static_cast<std::size_t>(chosen)),
                .weights = std::vector<float>(static_cast<std::size_t>(chosen))};
  std::vector<float> overwritten = logits;
  choose_experts(experts, {}, overwritten, choice.ids, choice.weights);
  return choice;
}

TEST(ChooseExperts, OfEqualLogitsTheLowerIdIsTaken) {
  EXPECT_THAT(choose({1, 3, 3, 3, 0}, 2, RouterRule::kSoftmaxOfChosen).ids, ElementsAre(1, 2));
  EXPECT_THAT(choose({3, 1, 3, 1, 3}, 4, RouterRule::kSoftmaxOfChosen).ids,
              ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(choose({0, 0, 0}, 3, RouterRule::kSoftmaxOfChosen).ids, ElementsAre(0, 1, 2));
  EXPECT_THAT(choose({0.0f, -0.0f, 0.0f}, 1, RouterRule::kSoftmaxOfChosen).ids, ElementsAre(0));
}

TEST(ChooseExperts, WeightsAreOfAllOrOfTheChosen) {
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f),
                                     std::log(3.0f)};
  const Choice all = choose(logits, 2, RouterRule::kSoftmaxOfAll);
  EXPECT_THAT(all.ids, ElementsAre(1, 3));
  EXPECT_THAT(all.weights, Pointwise(testing::FloatEq(), {0.4f, 0.3f}));
  EXPECT_THAT(choose(logits, 2, RouterRule::kSoftmaxOfChosen).weights,
              Pointwise(testing::FloatEq(), {4.0f / 7, 3.0f / 7}));
}

// Groups are {0, 1}, {2, 3} and {4, 5}. Their largest logits are 5, 4 and 6. By sums of two
// sigmoids the second group ranks first.
TEST(ChooseExperts, AreOfTheGroupsThatRankFirst) {
  const std::vector<float> logits = {5, -9, 4, 4, 6, -9};
  Experts experts = {
      .count = 6, .chosen = 2, .rule = RouterRule::kSoftmaxOfAll, .groups = 3, .chosen_groups = 2};
  const auto ids_of = [&](std::int32_t chosen_groups, RouterRule rule) {
    experts.chosen_groups = chosen_groups;
    experts.rule = rule;
    std::vector<std::int32_t> ids(2);
    std::vector<float> weights(2), overwritten = logits;
    choose_experts(experts, {}, overwritten, ids, weights);
    return ids;
  };
  EXPECT_THAT(ids_of(1, RouterRule::kSoftmaxOfAll), ElementsAre(4, 5));
  EXPECT_THAT(ids_of(2, RouterRule::kSoftmaxOfAll), ElementsAre(0, 4));
  EXPECT_THAT(ids_of(1, RouterRule::kSigmoidOfAll), ElementsAre(2, 3));
  EXPECT_THAT(ids_of(2, RouterRule::kSigmoidOfAll), ElementsAre(2, 4));
  EXPECT_THAT(ids_of(3, RouterRule::kSigmoidOfAll), ElementsAre(0, 4));
}

// Sigmoids are 1/2, 4/5, 2/3, 3/4.
TEST(ChooseExperts, ASigmoidIsOfEachAloneAndABiasIsForTheChoiceOnly) {
  const std::vector<float> logits = {0.0f, std::log(4.0f), std::log(2.0f), std::log(3.0f)};
  EXPECT_THAT(choose(logits, 2, RouterRule::kSigmoidOfAll).weights,
              Pointwise(testing::FloatEq(), {0.8f, 0.75f}));
  Experts experts = {.count = 4,
                     .chosen = 2,
                     .rule = RouterRule::kSigmoidOfChosen,
                     .sum_epsilon = 0.1,
                     .weight_scale = 2,
                     .biases_choice = true};
  Choice choice = choose(logits, 2, RouterRule::kSigmoidOfAll);
  std::vector<float> overwritten = logits;
  choose_experts(experts, std::vector<float>{1, 0, 0.5f, 0}, overwritten, choice.ids,
                 choice.weights);
  EXPECT_THAT(choice.ids, ElementsAre(0, 2));
  const float sum = 0.5f + 2.0f / 3 + 0.1f;
  EXPECT_THAT(choice.weights, Pointwise(testing::FloatEq(), {2 * 0.5f / sum, 4.0f / 3 / sum}));
}

TEST(ChooseExperts, LargeLogitsDoNotOverflow) {
  EXPECT_THAT(choose({1e30f, -1e30f, 0}, 2, RouterRule::kSoftmaxOfAll).weights, ElementsAre(1, 0));
}

TEST(ChooseExperts, NanIsSeen) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const RouterRule rule :
       {RouterRule::kSoftmaxOfAll, RouterRule::kSoftmaxOfChosen, RouterRule::kSigmoidOfChosen}) {
    const Choice choice = choose({5, kNan, 1, 7}, 2, rule);
    EXPECT_THAT(choice.ids, ElementsAre(1, 3));
    EXPECT_TRUE(std::isnan(choice.weights[0]) && std::isnan(choice.weights[1]));
  }
}

// The oracle sorts all ids.
TEST(ChooseExperts, AgreesWithASort) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const std::size_t count = 1 + random() % 40;
    const auto chosen = static_cast<std::int32_t>(1 + random() % count);
    std::vector<float> logits(count);
    std::ranges::generate(logits, [&] { return static_cast<float>(random() % 9); });
    std::vector<std::int32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::stable_sort(ids, [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    ids.resize(static_cast<std::size_t>(chosen));
    std::ranges::sort(ids);
    EXPECT_EQ(choose(logits, chosen, RouterRule::kSoftmaxOfChosen).ids, ids);
  }
}

TEST(GroupRows, PlacesAreInOrderOfExpertsThenOfRows) {
  const Experts experts = {.count = 5, .chosen = 2};
  Routing routing;
  for (int round = 0; round < 2; ++round) {
    group_rows(experts, std::vector<std::int32_t>{1, 4, 0, 4, 1, 2},
               std::vector<float>{.1f, .2f, .3f, .4f, .5f, .6f}, routing);
    ASSERT_EQ(routing.groups.size(), 4u);
    EXPECT_EQ(routing.groups[1].expert, 1);
    EXPECT_EQ(routing.groups[1].first, 1);
    EXPECT_EQ(routing.groups[1].rows, 2);
    EXPECT_EQ(routing.groups[3].expert, 4);
    EXPECT_EQ(routing.groups[3].first, 4);
    EXPECT_THAT(routing.rows, ElementsAre(1, 0, 2, 2, 0, 1));
    EXPECT_THAT(routing.weights, ElementsAre(.3f, .1f, .5f, .6f, .2f, .4f));
    EXPECT_THAT(routing.places, ElementsAre(1, 4, 0, 5, 2, 3));
  }
}

}  // namespace
}  // namespace quire::model
