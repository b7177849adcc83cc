// Guesses by hand-made histories, options by their texts, lengths by hand-made costs.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/drafter.h"
#include "quire/drafts/draft_length.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/ngram.h"
#include "quire/drafts/options.h"
#include "quire/drafts/suffix.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::drafts {
namespace {

using Ids = std::vector<TokenId>;

Ids guess_of(DraftSource& source, const Ids& own, std::int32_t most,
             const std::vector<Ids>& pieces = {}, const std::string& tenant = "") {
  std::vector<std::span<const TokenId>> prompt(pieces.begin(), pieces.end());
  Ids draft;
  const DraftQuery query{
      .history = {.prompt = prompt, .own = own, .tenant = tenant}, .most = most, .draft = &draft};
  source.propose({&query, 1});
  return draft;
}

TEST(Ngrams, GuessWhatFollowedTheLongestMatch) {
  NgramSource source(2);
  EXPECT_EQ(guess_of(source, {1, 2, 3, 4, 9, 2, 3, 7, 8, 1, 2, 3}, 2), (Ids{4, 9}));
  EXPECT_EQ(guess_of(source, {2, 3, 4, 9, 2, 3, 7, 8, 2, 3}, 2), (Ids{7, 8})) << "the latest";
}

TEST(Ngrams, GuessNothingForFewerTokensThanAsked) {
  NgramSource source(3);
  EXPECT_EQ(guess_of(source, {1, 2, 3, 9, 2, 3}, 4), Ids());
  EXPECT_EQ(guess_of(source, {5}, 4), Ids());
  EXPECT_EQ(guess_of(source, {}, 4), Ids());
}

TEST(Ngrams, GuessThatWhatRepeatsRepeatsAgain) {
  NgramSource source(2);
  EXPECT_EQ(guess_of(source, {5, 6, 5, 6, 5}, 6), (Ids{6, 5, 6, 5, 6, 5}));
}

TEST(Ngrams, LookIntoThePiecesOfAComposedPrompt) {
  NgramSource source(2);
  EXPECT_EQ(guess_of(source, {8, 1, 2}, 9, {{7, 1, 2, 3, 4}, {4, 5}}), (Ids{3, 4}));
}

TEST(Suffixes, FollowWhatCameMostOften) {
  SuffixSource source;
  EXPECT_EQ(guess_of(source, {1, 2, 5, 1, 2, 6, 1, 2, 5, 9, 1, 2}, 1), (Ids{5}));
}

TEST(Suffixes, AreHeardOfTheSameTenantAlone) {
  SuffixSource source;
  const Ids said = {1, 2, 3, 4, 5};
  source.learn({.output = said, .tenant = "a"});
  EXPECT_EQ(guess_of(source, {9, 1, 2}, 8, {}, "a"), (Ids{3, 4, 5}));
  EXPECT_EQ(guess_of(source, {9, 1, 2}, 8, {}, "b"), Ids());
}

TEST(Suffixes, AreNoLongerThanTheirMatchAllows) {
  SuffixSource source;
  const Ids said = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  source.learn({.output = said, .tenant = ""});
  EXPECT_EQ(guess_of(source, {70, 1}, 32).size(), SuffixSource::kFactor);
}

TEST(Suffixes, ForgetTheOldest) {
  SuffixSource source;
  const Ids first = {1, 2, 3};
  source.learn({.output = first, .tenant = ""});
  source.learn({.output = Ids(SuffixSource::kKeptTokens, 7), .tenant = ""});
  EXPECT_EQ(guess_of(source, {1, 2}, 8), Ids());
}

SpeculationOptions read(const std::string& text) {
  LLMOptions options;
  options.speculate = text;
  const auto result = speculation_of(options);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : SpeculationOptions();
}

TEST(SpeculationText, IsAMethodOrAnObject) {
  EXPECT_EQ(read("").method, Method::kNone);
  EXPECT_EQ(read("ngram").max_tokens, 8);
  EXPECT_EQ(read("suffix").max_tokens, 16);
  const SpeculationOptions all = read(
      R"({"method": "ngram", "max_tokens": 3, "min_match": 4, "adapt": false,
          "acceptance": {"rule": "threshold", "p": 0.5}})");
  EXPECT_EQ(all.max_tokens, 3);
  EXPECT_EQ(all.min_match, 4);
  EXPECT_FALSE(all.adapt);
  EXPECT_EQ(all.threshold, 0.5);
  EXPECT_EQ(read(R"({"method": "draft", "model": "m", "width": 1})").model, "m");
  EXPECT_FALSE(read(R"({"method": "ngram", "acceptance": {"rule": "exact"}})").threshold);
}

TEST(SpeculationText, IsRefusedByTheNameOfWhatIsWrong) {
  struct Case {
    const char* text;
    const char* named;
    ErrorCode code = ErrorCode::kInvalidArgument;
  };
  for (const Case& wrong : std::initializer_list<Case>{
           {"turbo", "method"},
           {"{", "speculate"},
           {R"({"max_tokens": 3})", "method"},
           {R"({"method": "ngram", "depth": 3})", "depth"},
           {R"({"method": "suffix", "min_match": 3})", "min_match"},
           {R"({"method": "ngram", "max_tokens": 0})", "max_tokens"},
           {R"({"method": "ngram", "max_tokens": 65})", "max_tokens"},
           {R"({"method": "ngram", "max_tokens": true})", "max_tokens"},
           {R"({"method": "ngram", "adapt": 1})", "adapt"},
           {R"({"method": "draft"})", "model"},
           {R"({"method": "draft", "model": "m", "width": 2})", "width", ErrorCode::kUnsupported},
           {R"({"method": "ngram", "acceptance": {"rule": "luck"}})", "acceptance"},
           {R"({"method": "ngram", "acceptance": {"rule": "threshold"}})", "p"},
           {R"({"method": "ngram", "acceptance": {"rule": "threshold", "p": 2}})", "p"},
           {R"({"method": "ngram", "acceptance": {"rule": "exact", "p": 1}})", "p"},
           {R"({"method": "custom"})", "drafter"}}) {
    LLMOptions options;
    options.speculate = wrong.text;
    const auto result = speculation_of(options);
    ASSERT_FALSE(result.ok()) << wrong.text;
    EXPECT_EQ(result.error().code, wrong.code) << wrong.text;
    EXPECT_NE(result.error().message.find(wrong.named), std::string::npos)
        << result.error().message;
  }
}

// Costs of a machine where each row takes `row` seconds beside a fixed one.
RowCosts costs_of(double row) {
  RowCosts costs;
  for (std::int64_t rows = 1; rows <= 64; ++rows) {
    costs.add(rows, 1 + row * static_cast<double>(rows));
  }
  return costs;
}

TEST(DraftLengths, GrowWithTheRateAndShrinkWithTheCost) {
  EXPECT_EQ(draft_length(0.9, costs_of(0), 1, 1, 8), 8);
  EXPECT_EQ(draft_length(0.0, costs_of(0.1), 1, 1, 8), 0);
  const std::int32_t likely = draft_length(0.9, costs_of(0.1), 1, 1, 8);
  EXPECT_GT(likely, draft_length(0.5, costs_of(0.1), 1, 1, 8));
  EXPECT_GT(likely, draft_length(0.9, costs_of(1), 1, 1, 8));
}

TEST(DraftLengths, AreNothingWhereRowsCostAsMuchAsTokens) {
  RowCosts costs;
  for (std::int64_t rows = 1; rows <= 80; ++rows) {
    costs.add(rows, static_cast<double>(rows));
  }
  EXPECT_EQ(draft_length(0.8, costs, 64, 64, 8), 0);
}

TEST(DraftLengths, AreTheMostWhileNothingIsKnown) {
  EXPECT_EQ(draft_length(0.5, RowCosts(), 1, 1, 8), 8);
  EXPECT_EQ(draft_length(0.9, RowCosts(), RowCosts::kMostRows, 1, 8), 0);
}

TEST(RowCosts, AreALineThroughWhatWasMeasured) {
  RowCosts costs;
  EXPECT_EQ(costs.seconds(3), 0);
  costs.add(2, 8);
  costs.add(2, 8);
  EXPECT_DOUBLE_EQ(costs.seconds(2), 8);
  EXPECT_DOUBLE_EQ(costs.seconds(3), 9) << "a quarter of a row's share";
  costs.add(6, 16);
  EXPECT_NEAR(costs.seconds(4), 12, 1e-9);
  EXPECT_NEAR(costs.seconds(9), 22, 1e-9);
}

TEST(RowCosts, AreLittleMovedByASlowStep) {
  RowCosts costs = costs_of(0.5);
  const double before = costs.seconds(10);
  costs.add(10, 100);
  EXPECT_NEAR(costs.seconds(10), before, 0.02 * before);
}

TEST(Acceptances, BeginWithWhatOtherRequestsHaveShown) {
  Acceptance others;
  for (int i = 0; i < 20; ++i) {
    others.note(4, 0);
  }
  Acceptance fresh;
  fresh.begin(others);
  EXPECT_DOUBLE_EQ(fresh.rate(), others.rate());
  fresh.note(4, 4);
  const double rate = fresh.rate();
  EXPECT_GT(rate, 0.5);
  fresh.begin(others);
  EXPECT_EQ(fresh.rate(), rate) << "it has begun";
}

TEST(DraftLengths, ExpectedTokensAreTheGeometricSum) {
  EXPECT_DOUBLE_EQ(expected_tokens(0.8, 4), (1 - 0.8 * 0.8 * 0.8 * 0.8 * 0.8) / (1 - 0.8));
  EXPECT_DOUBLE_EQ(expected_tokens(1, 3), 4);
}

TEST(Acceptances, FollowWhatGuessesBring) {
  Acceptance good;
  Acceptance bad;
  for (int i = 0; i < 20; ++i) {
    good.note(4, 4);
    bad.note(4, 0);
  }
  EXPECT_GT(good.rate(), 0.95);
  EXPECT_LT(bad.rate(), 0.05);
}

TEST(Acceptances, TryAgainAfterLongerAndLongerSilence) {
  Acceptance acceptance;
  std::vector<int> waits;
  for (int i = 0; i < 3; ++i) {
    int wait = 0;
    for (; !acceptance.may_probe(); ++wait) {
      acceptance.note_silence();
    }
    waits.push_back(wait);
    acceptance.note(2, 0);
  }
  EXPECT_EQ(waits, (std::vector<int>{32, 64, 128}));
}

}  // namespace
}  // namespace quire::drafts
