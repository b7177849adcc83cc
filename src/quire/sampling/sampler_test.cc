#include "quire/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/kernels/choice.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/philox.h"
#include "quire/types.h"

namespace quire::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Row {
  SamplingParams params;
  std::uint64_t seed = 11;
  std::int32_t index = 0;
  std::vector<TokenId> prompt = {};
  std::vector<TokenId> output = {};
  std::vector<TokenId> end_ids = {};

  [[nodiscard]] SampleContext context() const {
    return {.params = &params,
            .seed = seed,
            .index = index,
            .prompt = prompt,
            .output = output,
            .end_ids = end_ids};
  }
};

std::vector<float> random_logits(std::size_t size, std::uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(size);
  std::generate(out.begin(), out.end(), [&] { return normal(random); });
  return out;
}

TEST(ChoiceOf, CarriesWhatDecidesAndTheNumberOfTheRowAndStep) {
  const Row row{.params = {.temperature = 0.7, .top_p = 0.9, .top_k = 40, .min_p = 0.05},
                .index = 3};
  const kernels::Choice choice = choice_of(row.context());
  EXPECT_EQ(choice.temperature, 0.7);
  EXPECT_EQ(choice.top_p, 0.9);
  EXPECT_EQ(choice.top_k, 40);
  EXPECT_EQ(choice.min_p, 0.05);
  EXPECT_EQ(choice.uniform, uniform_at(row.seed, 3));
  EXPECT_EQ(choice.wanted, 1);
}

TEST(ChoiceOf, TellsNoLogProbabilitiesFromThoseOfTheChosenTokenAlone) {
  EXPECT_EQ(choice_of(Row().context()).logprobs, -1);
  EXPECT_EQ(choice_of(Row{.params = {.logprobs = 0}}.context()).logprobs, 0);
  EXPECT_EQ(choice_of(Row{.params = {.logprobs = 20}}.context()).logprobs, 20);
}

TEST(Changes, HoldEachLogitThatBiasPenaltiesAndMinTokensChangeOnce) {
  Sampler sampler;
  const Row row{.params = {.repetition_penalty = 1.25,
                           .presence_penalty = 0.5,
                           .frequency_penalty = 0.25,
                           .min_tokens = 5,
                           .logit_bias = {{7, 1.5}}},
                .index = 3,
                .prompt = {4, 2, 4},
                .output = {7, 9, 7},
                .end_ids = {1, 9}};
  const auto changes = sampler.changes(row.context(), 10).value();
  std::map<TokenId, kernels::LogitChange> by_id;
  for (const kernels::LogitChange& change : changes) {
    EXPECT_TRUE(by_id.emplace(change.id, change).second) << change.id;
  }
  EXPECT_EQ(by_id.size(), 5U);
  EXPECT_EQ(kernels::changed_logit(2, by_id[7]), (2 + 1.5F) / 1.25F - 1.0F);
  EXPECT_EQ(kernels::changed_logit(-2, by_id[4]), -2.5F);
  EXPECT_EQ(kernels::changed_logit(-2, by_id[2]), -2.5F);
  EXPECT_EQ(kernels::changed_logit(3, by_id[9]), -kInf);
  EXPECT_EQ(kernels::changed_logit(3, by_id[1]), -kInf);
  EXPECT_TRUE(sampler.changes(Row{}.context(), 10)->empty());
  EXPECT_EQ(sampler.changes(row.context(), 9).error().code, ErrorCode::kInvalidArgument);
}

// Is the oracle: each rule of include/quire/sampling.h as it stands there, in double, with a full
// sort.
std::vector<double> naive_logits(const std::vector<float>& logits, const Row& row) {
  const SamplingParams& params = row.params;
  std::vector<double> out(logits.begin(), logits.end());
  const auto at = [&](TokenId id) -> double& { return out[static_cast<std::size_t>(id)]; };
  for (const auto& [id, bias] : params.logit_bias) {
    at(id) += bias;
  }
  std::set<TokenId> seen(row.prompt.begin(), row.prompt.end());
  seen.insert(row.output.begin(), row.output.end());
  for (const TokenId id : seen) {
    at(id) = at(id) > 0 ? at(id) / params.repetition_penalty : at(id) * params.repetition_penalty;
  }
  std::map<TokenId, int> counts;
  for (const TokenId id : row.output) {
    ++counts[id];
  }
  for (const auto& [id, count] : counts) {
    at(id) -= params.presence_penalty + (params.frequency_penalty * count);
  }
  if (row.index < params.min_tokens) {
    for (const TokenId id : row.end_ids) {
      at(id) = -std::numeric_limits<double>::infinity();
    }
  }
  return out;
}

std::vector<double> naive_probabilities(const std::vector<float>& logits, const Row& row) {
  const std::vector<double> adjusted = naive_logits(logits, row);
  const SamplingParams& params = row.params;
  const double peak = *std::max_element(adjusted.begin(), adjusted.end());
  std::vector<std::pair<double, std::size_t>> sorted;
  sorted.reserve(adjusted.size());
  for (std::size_t i = 0; i < adjusted.size(); ++i) {
    sorted.emplace_back(-std::exp((adjusted[i] - peak) / params.temperature), i);
  }
  std::sort(sorted.begin(), sorted.end());
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < sorted.size()) {
    sorted.resize(static_cast<std::size_t>(params.top_k));
  }
  double total = 0;
  for (const auto& entry : sorted) {
    total -= entry.first;
  }
  double reached = 0;
  std::vector<double> out(adjusted.size(), 0);
  for (const auto& [weight, id] : sorted) {
    out[id] = -weight >= params.min_p ? -weight : 0;
    reached -= weight;
    if (params.top_p < 1 && reached >= params.top_p * total) {
      break;
    }
  }
  double kept = 0;
  for (const double p : out) {
    kept += p;
  }
  for (double& p : out) {
    p /= kept;
  }
  return out;
}

TokenId naive_choice(const std::vector<float>& logits, const Row& row) {
  const auto probabilities = naive_probabilities(logits, row);
  const double u = uniform_at(row.seed, static_cast<std::uint64_t>(row.index));
  double reached = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    reached += probabilities[i];
    if (reached > u) {
      return static_cast<TokenId>(i);
    }
  }
  return -1;
}

TokenId choose(std::vector<float> logits, const Row& row) {
  Sampler sampler;
  const auto token = sampler.sample(logits, row.context());
  EXPECT_TRUE(token.ok()) << (token.ok() ? "" : token.error().message);
  return token.ok() ? token->id : -1;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdAmongEquals) {
  Row row;
  row.params.temperature = 0;
  EXPECT_EQ(choose({1, 5, 3, 5, -kInf}, row), 1);
  EXPECT_EQ(choose({-kInf, -kInf, -7}, row), 2);
  row.params.top_k = 1;
  row.params.top_p = 0.1;
  EXPECT_EQ(choose({0, 0, 0}, row), 0);
}

// Wherever it stands among blocks that are looked at together, and in a last one that is not whole.
TEST(Sampler, GreedyFindsTheFirstOfTheLargestAnywhere) {
  constexpr std::size_t kVocab = 1000;
  Sampler sampler;
  const Row greedy{.params = {.temperature = 0}};
  for (std::size_t place = 0; place < kVocab; place += 37) {
    std::vector<float> logits = random_logits(kVocab, 5);
    logits[place] = 100;
    logits[kVocab - 1] = place % 2 == 0 ? 100.0F : 99.0F;
    const auto token = sampler.sample(logits, greedy.context());
    ASSERT_TRUE(token.ok());
    EXPECT_EQ(token->id, static_cast<TokenId>(place));
  }
}

TEST(Sampler, TopKOfEqualLogitsKeepsTheLowerIds) {
  Row row;
  row.params.top_k = 3;
  std::set<TokenId> chosen;
  for (row.index = 0; row.index < 200; ++row.index) {
    chosen.insert(choose(std::vector<float>(1000, 0.5F), row));
  }
  EXPECT_EQ(chosen, (std::set<TokenId>{0, 1, 2}));
}

TEST(Sampler, EveryRuleAndTheirMixturesEqualTheNaiveOracle) {
  std::mt19937 random(5);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    const std::size_t vocab = 2 + (random() % 400);
    const auto logits = random_logits(vocab, random(), one_in(2) ? 1.0F : 6.0F);
    const auto some_ids = [&](std::size_t count) {
      std::vector<TokenId> ids(count);
      std::generate(ids.begin(), ids.end(), [&] { return static_cast<TokenId>(random() % vocab); });
      return ids;
    };
    Row row;
    row.seed = random();
    row.index = static_cast<std::int32_t>(random() % 1000);
    row.params.temperature = one_in(3) ? 1.0 : real(0.1, 3);
    row.params.top_k = one_in(2) ? 0 : static_cast<std::int32_t>(1 + (random() % 500));
    row.params.top_p = one_in(2) ? 1.0 : real(0.01, 0.999);
    row.params.min_p = one_in(2) ? 0.0 : real(0, 1);
    row.params.repetition_penalty = one_in(2) ? 1.0 : real(0.5, 2);
    row.params.presence_penalty = one_in(2) ? 0.0 : real(-2, 2);
    row.params.frequency_penalty = one_in(2) ? 0.0 : real(-2, 2);
    row.params.min_tokens = one_in(2) ? 0 : 500;
    row.prompt = some_ids(random() % 50);
    row.output = some_ids(random() % 50);
    row.end_ids = some_ids(1);
    for (TokenId id = 0; id < 2; ++id) {
      row.params.logit_bias.emplace_back(id, real(-5, 5));
    }
    ASSERT_EQ(choose(logits, row), naive_choice(logits, row)) << round;
  }
}

TEST(Sampler, LargeVocabularyEqualsTheNaiveOracle) {
  for (std::int32_t round = 0; round < 30; ++round) {
    const auto logits = random_logits(50'001, static_cast<std::uint32_t>(round), 2);
    Row row;
    row.index = round;
    row.params.temperature = 0.8;
    // A flat row, so that the border of top-p lies among many tokens.
    row.params.top_p = round % 2 == 0 ? 0.95 : 1.0;
    row.params.top_k = round % 3 == 0 ? 0 : 2000;
    ASSERT_EQ(choose(logits, row), naive_choice(logits, row)) << round;
  }
}

// Pearson's statistic of 1e5 draws against the oracle's distribution.
TEST(Sampler, DrawsFollowTheDistribution) {
  const auto logits = random_logits(40, 3, 1.5);
  Row row;
  row.params.temperature = 0.9;
  row.params.top_p = 0.97;
  const auto expected = naive_probabilities(logits, row);
  std::vector<int> counts(logits.size(), 0);
  constexpr int kDraws = 100'000;
  Sampler sampler;
  for (row.index = 0; row.index < kDraws; ++row.index) {
    auto scratch = logits;
    const auto token = sampler.sample(scratch, row.context());
    ASSERT_TRUE(token.ok());
    ++counts[static_cast<std::size_t>(token->id)];
  }
  double statistic = 0;
  int cells = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    const double mean = expected[i] * kDraws;
    statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++cells;
  }
  // With n cells the statistic has mean n - 1 and variance 2 (n - 1): five deviations above.
  const double freedom = cells - 1;
  EXPECT_LT(statistic, freedom + (5 * std::sqrt(2 * freedom)));
  EXPECT_GT(cells, 15);
}

TEST(Sampler, ARowDoesNotDependOnTheRowsBefore) {
  Sampler used;
  const auto logits = random_logits(1000, 9);
  Row row;
  row.params.top_p = 0.9;
  row.params.repetition_penalty = 1.3;
  row.output = {1, 2, 3};
  auto fresh_row = logits;
  const auto fresh = Sampler().sample(fresh_row, row.context());
  Row other = row;
  other.params.top_k = 7;
  other.params.logprobs = 3;
  other.prompt = {500, 501};
  for (const std::size_t size : {50'000, 600}) {
    auto noise = random_logits(size, 1);
    ASSERT_TRUE(used.sample(noise, other.context()).ok());
  }
  auto again = logits;
  const auto token = used.sample(again, row.context());
  ASSERT_TRUE(token.ok() && fresh.ok());
  EXPECT_EQ(token->id, fresh->id);
  EXPECT_EQ(again, fresh_row);
}

TEST(Sampler, LogprobsAreOfTheUnmodifiedLogits) {
  const auto logits = random_logits(100, 4);
  Row row;
  row.params.logprobs = 5;
  row.params.temperature = 0;
  row.params.logit_bias = {{42, 50.0}};
  row.params.repetition_penalty = 3;
  row.output = {42};
  auto scratch = logits;
  const auto token = Sampler().sample(scratch, row.context());
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->id, 42);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit));
  }
  std::vector<TokenId> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<TokenId>(i);
  }
  std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  ASSERT_EQ(token->logprobs.size(), 6);
  for (std::size_t i = 0; i < 6; ++i) {
    const TokenId id = i < 5 ? order[i] : 42;
    EXPECT_EQ(token->logprobs[i].first, id);
    EXPECT_NEAR(token->logprobs[i].second,
                static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(sum), 1e-5);
  }
}

TEST(Sampler, LogprobsHoldTheChosenTokenOnce) {
  Row row;
  row.params.temperature = 0;
  row.params.logprobs = 0;
  std::vector<float> logits = {0, 1, 2};
  Sampler sampler;
  auto token = sampler.sample(logits, row.context());
  ASSERT_TRUE(token.ok());
  EXPECT_THAT(token->logprobs,
              testing::ElementsAre(testing::Pair(2, testing::FloatNear(-0.4076F, 1e-4F))));
  row.params.logprobs = 10;
  token = sampler.sample(logits, row.context());
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->logprobs.size(), 3);
  row.params.logprobs.reset();
  token = sampler.sample(logits, row.context());
  ASSERT_TRUE(token.ok());
  EXPECT_TRUE(token->logprobs.empty());
}

TEST(Sampler, EndIdsAreForbiddenBeforeMinTokensAndAllowedFromThen) {
  Row row;
  row.params.temperature = 0;
  row.params.min_tokens = 3;
  row.end_ids = {1};
  row.index = 2;
  EXPECT_EQ(choose({0, 9, 1}, row), 2);
  row.index = 3;
  EXPECT_EQ(choose({0, 9, 1}, row), 1);
}

TEST(Sampler, RefusesRowsWithoutAChoice) {
  Row row;
  const auto message = [&](std::vector<float> logits) {
    const auto token = Sampler().sample(logits, row.context());
    EXPECT_FALSE(token.ok());
    return token.ok() ? std::string() : token.error().message;
  };
  EXPECT_THAT(message({0, std::nanf(""), 1}), testing::HasSubstr("token 1 is nan"));
  EXPECT_THAT(message({0, 1, kInf}), testing::HasSubstr("token 2 is inf"));
  EXPECT_THAT(message({-kInf, -kInf}), testing::HasSubstr("all 2 logits are -inf"));
  EXPECT_THAT(message({}), testing::HasSubstr("no logits"));
  row.params.min_tokens = 1;
  row.end_ids = {0, 1};
  EXPECT_THAT(message({1, 2}), testing::HasSubstr("min_tokens"));
}

// The first of them, before and behind the largest, and in a last block that is not whole.
TEST(Sampler, NamesTheFirstLogitThatIsRefusedWhereverItStands) {
  constexpr std::size_t kVocab = 1000;
  Sampler sampler;
  const Row greedy{.params = {.temperature = 0}};
  for (std::size_t place = 0; place < kVocab; place += 37) {
    for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> logits = random_logits(kVocab, 5);
      logits[500] = 100;
      logits[place] = bad;
      logits[kVocab - 1] = bad;
      const auto token = sampler.sample(logits, greedy.context());
      ASSERT_FALSE(token.ok());
      EXPECT_THAT(token.error().message,
                  testing::StartsWith("logit of token " + std::to_string(place) + " is "));
    }
  }
}

TEST(Sampler, RefusesIdsOutsideOfTheVocabulary) {
  const auto refused = [](const Row& row) {
    std::vector<float> logits = {0, 1, 2};
    const auto token = Sampler().sample(logits, row.context());
    return !token.ok() && token.error().code == ErrorCode::kInvalidArgument;
  };
  Row row;
  row.params.logit_bias = {{3, 1.0}};
  EXPECT_TRUE(refused(row));
  row = {};
  row.params.presence_penalty = 0.5;
  row.output = {-1};
  EXPECT_TRUE(refused(row));
  row = {};
  row.end_ids = {99};
  EXPECT_TRUE(refused(row));
  row = {};
  row.params.repetition_penalty = 1.1;
  row.prompt = {5};
  EXPECT_TRUE(refused(row));
}

TEST(Sampler, ExtremeParametersStayDefined) {
  Row row;
  row.params.temperature = 1e-300;
  EXPECT_EQ(choose({1, 3, 2}, row), 1);
  row.params.temperature = 1e300;
  EXPECT_GE(choose({1, 3, 2, -kInf}, row), 0);
  row.params.temperature = 1;
  row.params.logit_bias = {{0, 1e300}, {1, -1e300}};
  EXPECT_EQ(choose({0, 50, 3e38F}, row), 0);
  row.params.logit_bias = {{0, -1e300}};
  row.params.temperature = 0;
  EXPECT_EQ(choose({9, 1}, row), 1);
}

}  // namespace
}  // namespace quire::sampling
