// Oracle: the rule of include/quire/sampling.h and log probabilities in double precision, by
// sorting the row.
#include "quire/kernels/cuda/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/choice.h"

namespace quire::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kBorder = 1e-5;  // how close to a border the oracle leaves it open who is chosen
// A float of the size of a log probability of 30 is given in steps of 2e-6.
constexpr double kLogprobError = 5e-6;
constexpr TokenLogprob kUntouched = {.id = -5, .logprob = 1};

using Rows = std::vector<std::vector<float>>;

// Most likely first, of equal ones the lower id.
std::vector<std::int32_t> sorted_ids(const std::vector<float>& logits) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  });
  return ids;
}

// Tokens that the choice leaves, with exp((logit - peak) / temperature).
std::vector<std::pair<std::int32_t, double>> left_by(const std::vector<float>& logits,
                                                     const Choice& choice) {
  std::vector<std::int32_t> ids = sorted_ids(logits);
  if (choice.top_k > 0 && static_cast<std::size_t>(choice.top_k) < ids.size()) {
    ids.resize(static_cast<std::size_t>(choice.top_k));
  }
  const double peak = logits[static_cast<std::size_t>(ids.front())];
  std::vector<std::pair<std::int32_t, double>> left;
  double sum = 0;
  for (const std::int32_t id : ids) {
    left.emplace_back(id,
                      std::exp((logits[static_cast<std::size_t>(id)] - peak) / choice.temperature));
    sum += left.back().second;
  }
  double reached = 0;
  std::size_t kept = 0;
  while (kept < left.size() && (kept == 0 || reached < choice.top_p * sum)) {
    reached += left[kept++].second;
  }
  left.resize(choice.top_p < 1 ? kept : left.size());
  std::erase_if(left, [&](const auto& token) { return token.second < choice.min_p; });
  std::sort(left.begin(), left.end());
  return left;
}

// Returns whether `id` is where the running sum exceeds the uniform number's share.
bool is_right(const std::vector<float>& logits, const Choice& choice, std::int32_t id) {
  const auto left = left_by(logits, choice);
  double all = 0;
  for (const auto& token : left) {
    all += token.second;
  }
  double before = 0;
  for (const auto& [candidate, weight] : left) {
    if (candidate == id) {
      return weight > 0 && choice.uniform >= before / all - kBorder &&
             choice.uniform <= (before + weight) / all + kBorder;
    }
    before += weight;
  }
  return false;
}

double log_sum_exp(const std::vector<float>& logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - peak);
  }
  return peak + std::log(sum);
}

// The chosen token, the most likely ones, and behind them nothing.
void expect_right(const std::vector<TokenLogprob>& told, const std::vector<float>& logits,
                  std::int32_t logprobs, std::int32_t chosen) {
  std::vector<std::int32_t> ids = sorted_ids(logits);
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(logprobs)));
  ids.insert(ids.begin(), chosen);
  ids.resize(told.size(), kUntouched.id);
  const double log_sum = log_sum_exp(logits);
  for (std::size_t place = 0; place < ids.size(); ++place) {
    const auto& [id, logprob] = told[place];
    ASSERT_EQ(id, ids[place]) << "place " << place;
    if (id == kUntouched.id) {
      continue;
    }
    const float logit = logits[static_cast<std::size_t>(id)];
    if (logit == -kInfinity) {
      ASSERT_EQ(logprob, -kInfinity) << "place " << place;
    } else {
      ASSERT_NEAR(logprob, logit - log_sum, kLogprobError) << "place " << place;
    }
  }
}

std::vector<float> joined(const Rows& rows) {
  std::vector<float> all;
  for (const std::vector<float>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

class Choose : public device::cuda::test::GpuTest {
 protected:
  std::vector<std::int32_t> run(const Rows& rows, const std::vector<Choice>& choices) {
    const auto logits = upload(joined(rows));
    const auto how = upload(choices);
    const auto chosen = upload(std::vector<std::int32_t>(rows.size(), -7));
    EXPECT_EQ(choose({.logits = logits.data(),
                      .choices = how.data(),
                      .rows = static_cast<std::int64_t>(rows.size()),
                      .vocab = static_cast<std::int32_t>(rows.front().size()),
                      .chosen = chosen.data()},
                     stream()),
              cudaSuccess);
    return download(chosen, rows.size());
  }

  struct Told {
    std::vector<std::int32_t> chosen;
    std::vector<std::vector<TokenLogprob>> rows;
  };
  Told tell(const Rows& rows, const std::vector<Choice>& choices,
            const std::vector<std::int32_t>& tokens) {
    const auto logits = upload(joined(rows));
    const auto how = upload(choices);
    const auto chosen = upload(tokens);
    std::int32_t width = 1;
    for (const Choice& choice : choices) {
      width = std::max(width, choice.logprobs + 1);
    }
    const std::size_t each = static_cast<std::size_t>(width);
    const auto logprobs = upload(std::vector<TokenLogprob>(rows.size() * each, kUntouched));
    EXPECT_EQ(find_logprobs({.logits = logits.data(),
                             .choices = how.data(),
                             .rows = static_cast<std::int64_t>(rows.size()),
                             .vocab = static_cast<std::int32_t>(rows.front().size()),
                             .chosen = chosen.data(),
                             .logprobs = logprobs.data(),
                             .width = width},
                            stream()),
              cudaSuccess);
    Told told{.chosen = download(chosen, rows.size()), .rows = {}};
    const auto all = download(logprobs, rows.size() * each);
    for (auto row = all.begin(); row != all.end(); row += width) {
      told.rows.emplace_back(row, row + width);
    }
    return told;
  }
};

std::vector<float> random_row(std::size_t vocab, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(vocab);
  for (float& logit : row) {
    logit = normal(random);
  }
  return row;
}

TEST_F(Choose, GreedyTakesTheGreatestLogitAndOfEqualOnesTheFirst) {
  std::mt19937 random(1);
  for (const std::size_t vocab : {1u, 31u, 1024u, 5000u, 128256u}) {
    Rows rows = {random_row(vocab, random), std::vector<float>(vocab, -2.5f),
                 random_row(vocab, random)};
    rows[2].back() = rows[2].front() = 100;
    const auto greatest = std::max_element(rows[0].begin(), rows[0].end()) - rows[0].begin();
    const std::vector<std::int32_t> want = {static_cast<std::int32_t>(greatest), 0, 0};
    EXPECT_EQ(run(rows, std::vector<Choice>(3, {.temperature = 0, .wanted = 1})), want) << vocab;
  }
}

TEST_F(Choose, ZerosAreEqualWhateverTheirSign) {
  std::vector<float> row(3000, -1.0f);
  row[700] = -0.0f;
  row[900] = 0.0f;
  EXPECT_EQ(run({row}, {{.temperature = 0, .wanted = 1}}), std::vector<std::int32_t>{700});
}

TEST_F(Choose, DrawsTheTokenAtWhichTheRunningSumExceedsTheUniformNumber) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const std::size_t vocab : {5u, 1000u, 32003u, 128256u}) {
    Rows rows;
    std::vector<Choice> choices;
    for (const double temperature : {0.3, 1.0, 4.0}) {
      for (const std::int32_t top_k : {0, 1, 40, 5000}) {
        for (const double top_p : {1.0, 0.9, 0.05}) {
          for (const double min_p : {0.0, 0.1}) {
            rows.push_back(random_row(vocab, random));
            choices.push_back({.temperature = temperature,
                               .top_p = top_p,
                               .min_p = min_p,
                               .uniform = uniform(random),
                               .top_k = top_k,
                               .wanted = 1});
          }
        }
      }
    }
    const auto chosen = run(rows, choices);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(is_right(rows[i], choices[i], chosen[i]))
          << "vocab " << vocab << ", choice " << i << ": " << chosen[i];
    }
  }
}

TEST_F(Choose, EqualLogitsAreLeftInTheOrderOfTheirIds) {
  const std::vector<float> equal(3000, 1.25f);
  Rows rows;
  std::vector<Choice> choices;
  std::vector<std::int32_t> want;
  for (const double uniform : {0.0, 0.3, 0.999}) {
    rows.insert(rows.end(), 3, equal);
    choices.push_back({.temperature = 1, .uniform = uniform, .top_k = 10, .wanted = 1});
    want.push_back(static_cast<std::int32_t>(uniform * 10));
    choices.push_back({.temperature = 2, .top_p = 0.5, .uniform = uniform, .wanted = 1});
    want.push_back(static_cast<std::int32_t>(uniform * 1500));
    choices.push_back({.temperature = 1, .min_p = 1, .uniform = uniform, .wanted = 1});
    want.push_back(static_cast<std::int32_t>(uniform * 3000));
  }
  EXPECT_EQ(run(rows, choices), want);
}

TEST_F(Choose, ForbiddenTokensAreNeverChosen) {
  std::vector<float> row(2000, -kInfinity);
  row[1500] = -1;
  row[1999] = -1;
  Rows rows(4, row);
  const std::vector<std::int32_t> want = {1500, 1999, 1500, 1999};
  EXPECT_EQ(
      run(rows, {{.temperature = 1, .uniform = 0, .wanted = 1},
                 {.temperature = 1, .uniform = 0.9999999, .wanted = 1},
                 {.temperature = 0, .wanted = 1},
                 {.temperature = 1, .top_p = 0.99, .uniform = 0.75, .top_k = 50, .wanted = 1}}),
      want);
}

TEST_F(Choose, RowsWithoutATokenToChooseSaySo) {
  Rows rows(5, std::vector<float>(777, 0.5f));
  rows[0][776] = std::numeric_limits<float>::quiet_NaN();
  rows[1][3] = kInfinity;
  rows[2].assign(777, -kInfinity);
  const Choice drawn = {.temperature = 1, .uniform = 0.5, .wanted = 1};
  const std::vector<std::int32_t> want = {kNotChosen, kNotChosen, kNotChosen, kNotChosen, 388};
  EXPECT_EQ(run(rows, {drawn, drawn, drawn, {.temperature = 1}, drawn}), want);
}

TEST_F(Choose, ChangedLogitsHaveTheBitsOfTheHostsAndRestoredOnesThoseBefore) {
  std::mt19937 random(4);
  constexpr std::int32_t kVocab = 3001;
  std::vector<float> want = random_row(std::size_t{2} * kVocab, random);
  want[5] = -kInfinity;
  const std::vector<float> before = want;
  const auto logits = upload(want);
  std::uniform_real_distribution<double> uniform(-2, 2);
  std::vector<LogitChange> changes = {{.row = -1, .id = 3, .bias = 1}};
  for (std::int32_t id = 0; id < kVocab; id += 1 + id % 3) {
    changes.push_back({.row = id % 2,
                       .id = id,
                       .bias = id % 5 == 0 ? -1e300 : uniform(random),
                       .repetition = 2.5 + uniform(random),
                       .penalty = uniform(random),
                       .forbidden = id % 7 == 0 ? 1 : 0});
    float& logit = want[static_cast<std::size_t>(id % 2 * kVocab + id)];
    logit = changed_logit(logit, changes.back());
  }
  const auto to_do = upload(changes);
  const auto originals = upload(std::vector<float>(changes.size(), -7));
  ChangeParams params = {.changes = to_do.data(),
                         .count = static_cast<std::int64_t>(changes.size()),
                         .logits = logits.data(),
                         .vocab = kVocab,
                         .originals = originals.data()};
  ASSERT_EQ(change_logits(params, stream()), cudaSuccess);
  EXPECT_EQ(download(logits, want.size()), want);
  ASSERT_EQ(restore_logits(params, stream()), cudaSuccess);
  EXPECT_EQ(download(logits, want.size()), before);
  params.originals = nullptr;
  ASSERT_EQ(change_logits(params, stream()), cudaSuccess);
  EXPECT_EQ(download(logits, want.size()), want);
}

TEST_F(Choose, TellsTheChosenTokensLogProbabilityAndTheMostLikelyOnes) {
  std::mt19937 random(5);
  for (const std::size_t vocab : {1u, 5u, 31u, 1000u, 1025u, 32003u, 128256u}) {
    Rows rows;
    std::vector<Choice> choices;
    std::vector<std::int32_t> chosen;
    for (const std::int32_t logprobs : {0, 1, 20, 21, 333, kMostLogprobs}) {
      rows.push_back(random_row(vocab, random));
      rows.push_back(random_row(vocab, random));
      for (float& logit : rows.back()) {  // many are equal, a third is forbidden
        logit = random() % 3 == 0 ? -kInfinity : std::round(logit);
      }
      rows.back()[vocab / 2] = -0.0f;
      rows.emplace_back(vocab, -3.75f);
      rows.emplace_back(vocab, -kInfinity);
      rows.back()[vocab / 3] = 2;
      chosen.push_back(static_cast<std::int32_t>(random() % vocab));
      chosen.push_back(static_cast<std::int32_t>(vocab / 2));
      chosen.push_back(static_cast<std::int32_t>(vocab - 1));
      chosen.push_back(static_cast<std::int32_t>(vocab / 3));
      choices.insert(choices.end(), 4, {.temperature = 0.1, .wanted = 1, .logprobs = logprobs});
    }
    const Told told = tell(rows, choices, chosen);
    EXPECT_EQ(told.chosen, chosen);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("vocab " + std::to_string(vocab) + ", row " + std::to_string(i));
      expect_right(told.rows[i], rows[i], choices[i].logprobs, chosen[i]);
    }
  }
}

TEST_F(Choose, TellsNothingWhereNothingIsWantedOrNoTokenIsThere) {
  Rows rows(5, std::vector<float>(777, 0.5f));
  rows[3][776] = std::numeric_limits<float>::quiet_NaN();
  rows[4][3] = kInfinity;
  const Choice wants = {.wanted = 1, .logprobs = 2};
  const Told told =
      tell(rows, {wants, {.wanted = 1}, wants, wants, wants}, {7, 7, kNotChosen, 7, 7});
  const std::vector<std::int32_t> want = {7, 7, kNotChosen, kNotChosen, kNotChosen};
  EXPECT_EQ(told.chosen, want);
  EXPECT_EQ(told.rows[0][0].id, 7);
  EXPECT_EQ(told.rows[0][2].id, 1);
  for (std::size_t row = 1; row < rows.size(); ++row) {
    EXPECT_EQ(told.rows[row][0].id, kUntouched.id) << row;
  }
}

TEST_F(Choose, ARowsLogProbabilitiesDoNotDependOnTheOtherRowsNorOnTheRun) {
  std::mt19937 random(6);
  const auto row = random_row(50257, random);
  const Choice choice = {.wanted = 1, .logprobs = 20};
  const auto bits_of = [](const std::vector<TokenLogprob>& told) {
    std::vector<std::uint64_t> bits(told.size());
    std::transform(told.begin(), told.end(), bits.begin(),
                   [](const TokenLogprob& each) { return std::bit_cast<std::uint64_t>(each); });
    return bits;
  };
  const auto alone = bits_of(tell({row}, {choice}, {42}).rows.front());
  Rows rows(40, row);
  rows[7] = random_row(50257, random);
  const Told told = tell(rows, std::vector<Choice>(40, choice), std::vector<std::int32_t>(40, 42));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(bits_of(told.rows[i]) == alone, i != 7) << i;
  }
}

TEST_F(Choose, ARowsTokenDoesNotDependOnTheOtherRows) {
  std::mt19937 random(3);
  const auto row = random_row(50257, random);
  const Choice choice = {.temperature = 1, .top_p = 0.95, .uniform = 0.42, .wanted = 1};
  const std::int32_t alone = run({row}, {choice}).front();
  EXPECT_EQ(run(Rows(40, row), std::vector<Choice>(40, choice)),
            std::vector<std::int32_t>(40, alone));
}

}  // namespace
}  // namespace quire::kernels::cuda
