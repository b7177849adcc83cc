// A million acceptances of guessed chains against the model's probabilities. The model's logits
// follow from the token before; the guesses come from another distribution. The oracle is the
// softmax of each row, and chi-square says how far counts are from it.
#include "quire/sampling/acceptance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/sampler.h"
#include "quire/types.h"

namespace quire::sampling {
namespace {

constexpr std::size_t kVocab = 8;
constexpr std::int64_t kDraws = 1'000'000;
constexpr double kOneOfTenThousand = 29.9;  // which chi-square of 7 degrees exceeds so often

using ModelRow = std::array<float, kVocab>;
using DrawCounts = std::array<std::int64_t, kVocab>;

// Rows behind each token, made once.
std::array<ModelRow, kVocab> make_rows() {
  std::mt19937 random(7);
  std::array<ModelRow, kVocab> rows{};
  for (ModelRow& row : rows) {
    for (float& logit : row) {
      logit = static_cast<float>(random() % 4096) / 1536.0F;
    }
  }
  return rows;
}

double chi_square_of(const DrawCounts& counts, const ModelRow& logits, double temperature) {
  double sum = 0;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < kVocab; ++i) {
    sum += std::exp(logits[i] / temperature);
    all += counts[i];
  }
  double chi = 0;
  for (std::size_t i = 0; i < kVocab; ++i) {
    const double expected = static_cast<double>(all) * std::exp(logits[i] / temperature) / sum;
    chi += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
  }
  return chi;
}

class Acceptance : public testing::TestWithParam<double> {};

TEST_P(Acceptance, GivesEachTokenTheModelsProbabilityWhateverIsGuessed) {
  const std::array<ModelRow, kVocab> rows = make_rows();
  const SamplingParams params{.temperature = GetParam()};
  Sampler sampler;
  std::mt19937 random(11);
  std::array<std::array<DrawCounts, kVocab>, 3> counts{};  // [place][token before][token]
  std::int64_t right = 0;
  std::vector<SampledToken> chosen;
  for (std::int64_t draw = 0; draw < kDraws; ++draw) {
    std::array<TokenId, 2> guessed{};
    for (TokenId& token : guessed) {
      token = static_cast<TokenId>(std::min(random() % kVocab, random() % kVocab));
    }
    const auto before = [&](std::size_t taken) {
      return taken == 0 ? std::size_t{0} : static_cast<std::size_t>(guessed[taken - 1]);
    };
    const auto choose = [&](std::size_t taken) -> Result<SampledToken> {
      ModelRow row = rows[before(taken)];
      return sampler.sample(row, {.params = &params,
                                  .seed = static_cast<std::uint64_t>(draw),
                                  .index = static_cast<std::int32_t>(taken)});
    };
    chosen.clear();
    const Result<std::size_t> accepted = accept_guessed(guessed, 0, choose, chosen);
    ASSERT_TRUE(accepted.ok());
    ASSERT_EQ(chosen.size(), *accepted + 1);
    right += static_cast<std::int64_t>(*accepted);
    for (std::size_t place = 0; place < chosen.size(); ++place) {
      ++counts[place][before(place)][static_cast<std::size_t>(chosen[place].id)];
    }
  }
  EXPECT_GT(right, kDraws / 20);
  EXPECT_LT(chi_square_of(counts[0][0], rows[0], GetParam()), kOneOfTenThousand);
  for (std::size_t place = 1; place < counts.size(); ++place) {
    for (std::size_t token = 0; token < kVocab; ++token) {
      EXPECT_LT(chi_square_of(counts[place][token], rows[token], GetParam()), kOneOfTenThousand)
          << "place " << place << " behind token " << token;
    }
  }
}

// Without this the test above would not see an acceptor that is wrong.
TEST(AcceptanceOracle, SeesARuleThatPrefersTheGuess) {
  const ModelRow row = make_rows()[0];
  const SamplingParams params{.temperature = 1};
  Sampler sampler;
  DrawCounts counts{};
  for (std::int64_t draw = 0; draw < kDraws / 10; ++draw) {
    ModelRow copy = row;
    const auto token =
        sampler.sample(copy, {.params = &params, .seed = static_cast<std::uint64_t>(draw)});
    ASSERT_TRUE(token.ok());
    ++counts[draw % 50 == 0 ? 3 : static_cast<std::size_t>(token->id)];
  }
  EXPECT_GT(chi_square_of(counts, row, 1), kOneOfTenThousand);
}

INSTANTIATE_TEST_SUITE_P(Temperature, Acceptance, testing::Values(0.7, 1.0, 1.5),
                         [](const auto& info) {
                           return "Tenths" + std::to_string(static_cast<int>(10 * info.param));
                         });

}  // namespace
}  // namespace quire::sampling
