// Guesses by hand-made histories, options by their texts, lengths by hand-made costs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/drafter.h"
#include "quire/drafts/draft_budget.h"
#include "quire/drafts/draft_length.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess.h"
#include "quire/drafts/guess_tree.h"
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
  Guess draft;
  const DraftQuery query{
      .history = {.prompt = prompt, .own = own, .tenant = tenant}, .most = most, .draft = &draft};
  source.propose({&query, 1});
  return draft.tokens;
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
           {R"({"method": "draft", "model": "m", "width": 9})", "width",
            ErrorCode::kInvalidArgument},
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
  EXPECT_EQ(draft_length(0.9, costs_of(0), {.rows = 1, .tokens = 1, .most = 8}).tokens, 8);
  EXPECT_EQ(draft_length(0.0, costs_of(0.1), {.rows = 1, .tokens = 1, .most = 8}).tokens, 0);
  const std::int32_t likely =
      draft_length(0.9, costs_of(0.1), {.rows = 1, .tokens = 1, .most = 8}).tokens;
  EXPECT_GT(likely, draft_length(0.5, costs_of(0.1), {.rows = 1, .tokens = 1, .most = 8}).tokens);
  EXPECT_GT(likely, draft_length(0.9, costs_of(1), {.rows = 1, .tokens = 1, .most = 8}).tokens);
}

TEST(DraftLengths, AreNothingWhereRowsCostAsMuchAsTokens) {
  RowCosts costs;
  for (std::int64_t rows = 1; rows <= 80; ++rows) {
    costs.add(rows, static_cast<double>(rows));
  }
  EXPECT_EQ(draft_length(0.8, costs, {.rows = 64, .tokens = 64, .most = 8}).tokens, 0);
}

TEST(DraftLengths, AreTheMostWhileNothingIsKnown) {
  EXPECT_EQ(draft_length(0.5, RowCosts(), {.rows = 1, .tokens = 1, .most = 8}).tokens, 8);
  EXPECT_EQ(
      draft_length(0.9, RowCosts(), {.rows = RowCosts::kMostRows, .tokens = 1, .most = 8}).tokens,
      0);
}

// Steps of 1 s and 0.1 s for each row more; levels of a drafter of 0.3 s and 0.01 s for each query.
DraftBudget budget_of_a_draft_model() {
  DraftBudget budget;
  for (std::int64_t rows = 1; rows <= 32; ++rows) {
    budget.note_step(rows, 1 + 0.1 * static_cast<double>(rows));
    budget.note_answer(rows, 2, 2 * (0.3 + 0.01 * static_cast<double>(rows)));
  }
  return budget;
}

TEST(DraftBudgets, CountAPassOfTheDrafterThatFewRequestsShare) {
  const DraftBudget budget = budget_of_a_draft_model();
  const PlainStep step{.rows = 16, .tokens = 16, .may_guess = 16};
  EXPECT_TRUE(budget.pays({.requests = 16, .rows = 32, .levels = 2, .expected = 48}, step));
  EXPECT_FALSE(budget.pays({.requests = 1, .rows = 2, .levels = 2, .expected = 3}, step));
  EXPECT_TRUE(DraftBudget().pays({.requests = 1, .rows = 2, .levels = 2, .expected = 1}, step));
}

TEST(DraftBudgets, AFirstGuessIsWorthWhatTheTokensLeftBring) {
  const DraftBudget budget = budget_of_a_draft_model();
  const PlainStep step{.rows = 1, .tokens = 1, .may_guess = 1};
  const DraftLength length = budget.length(0.9, step, 4);
  ASSERT_GT(length.tokens, 0);
  EXPECT_TRUE(budget.is_worth(length, step, 1000, 10));
  EXPECT_FALSE(budget.is_worth(length, step, 2, 10));
}

TEST(DraftBudgets, TrialsTakeAHundredthOfTheTime) {
  DraftBudget budget;
  EXPECT_TRUE(budget.may_spend(0));
  EXPECT_FALSE(budget.may_spend(0.01));
  budget.earn(2);
  EXPECT_TRUE(budget.may_spend(0.019));
  budget.spend(0.05);
  EXPECT_FALSE(budget.may_spend(0));
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

TEST(Guesses, AChainIsOneBranch) {
  const Guess chain{.tokens = {5, 6, 7}, .parents = {}};
  const auto branches = branches_of(chain);
  ASSERT_EQ(branches.size(), 1U);
  EXPECT_EQ(branches[0].parent, -1);
  EXPECT_EQ(branches[0].count, 3);
  EXPECT_EQ(path_to(chain, 2), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_TRUE(branches_of(Guess()).empty());
}

//   5 - 6 - 7
//    \- 8 - 9
//   3
TEST(Guesses, ATreeHasABranchForEachWayOn) {
  const Guess tree{.tokens = {5, 6, 7, 8, 9, 3}, .parents = {-1, 0, 1, 0, 3, -1}};
  const auto branches = branches_of(tree);
  ASSERT_EQ(branches.size(), 3U);
  EXPECT_EQ(branches[0].count, 3);
  EXPECT_EQ(branches[1].parent, 0);
  EXPECT_EQ(branches[1].first, 3);
  EXPECT_EQ(branches[1].count, 2);
  EXPECT_EQ(branches[1].depth, 1);
  EXPECT_EQ(branches[2].parent, -1);
  EXPECT_EQ(branches[2].depth, 0);
  EXPECT_EQ(path_to(tree, 4), (std::vector<std::int32_t>{0, 3, 4}));
}

TEST(Guesses, AreCutAtTheFirstTokenThatIsOutOfOrder) {
  const auto left_of = [](std::vector<std::int32_t> parents) {
    Guess guess{.tokens = Ids(parents.size(), 1), .parents = std::move(parents)};
    cut(guess, 9);
    EXPECT_TRUE(guess.tokens.size() == guess.parents.size());
    return guess.tokens.size();
  };
  EXPECT_EQ(left_of({-1, 0, 1, 0, 3, -1}), 6U);
  EXPECT_EQ(left_of({-1, 0, -1, 0}), 3U) << "behind a token that is not on the path";
  EXPECT_EQ(left_of({0}), 0U);
  EXPECT_EQ(left_of({-1, 2, 1}), 1U);
  EXPECT_EQ(left_of({-1, -2}), 1U);
  Guess odd{.tokens = {1, 2, 3}, .parents = {-1}};
  cut(odd, 9);
  EXPECT_EQ(odd.tokens, Ids{1});
}

// Returns logits of four tokens with these probabilities.
std::vector<float> logits_of(const std::vector<double>& shares) {
  std::vector<float> logits;
  for (const double share : shares) {
    logits.push_back(static_cast<float>(std::log(share)) + 3);
  }
  return logits;
}

TEST(GuessTrees, HaveAStemAndTheLikeliestTokensBesideIt) {
  GuessTree tree({.levels = 2, .tokens = 4, .width = 2});
  tree.grow(-1, logits_of({0.1, 0.5, 0.35, 0.05}));  // 1 on the stem, 2 beside it
  const std::vector<std::int32_t> tips = tree.take_tips();
  ASSERT_EQ(tips.size(), 2U);
  EXPECT_EQ(tree.token(tips[0]), 1);
  EXPECT_EQ(tree.token(tips[1]), 2);
  tree.grow(tips[0], logits_of({0.6, 0.2, 0.15, 0.05}));  // 0 on the stem; 1 has 0.5 * 0.2
  tree.grow(tips[1], logits_of({0.05, 0.05, 0.1, 0.8}));  // 3 has 0.35 * 0.8
  EXPECT_TRUE(tree.take_tips().empty());
  Guess guess;
  tree.write(guess);
  EXPECT_EQ(guess.tokens, (Ids{1, 0, 2, 3}));
  EXPECT_EQ(guess.parents, (std::vector<std::int32_t>{-1, 0, -1, 2}));
}

TEST(GuessTrees, OfAsManyTokensAsLevelsAreTheGreedyChain) {
  GuessTree tree({.levels = 3, .tokens = 3, .width = 4});
  std::vector<std::int32_t> tips = {-1};
  for (const TokenId likeliest : {2, 0, 3}) {
    std::vector<double> shares(4, 0.2);
    shares[static_cast<std::size_t>(likeliest)] = 0.4;
    tree.grow(tips.front(), logits_of(shares));
    tips = tree.take_tips();
  }
  EXPECT_TRUE(tips.empty());
  Guess guess;
  tree.write(guess);
  EXPECT_EQ(guess.tokens, (Ids{2, 0, 3}));
  EXPECT_EQ(branches_of(guess).size(), 1U);
}

}  // namespace
}  // namespace quire::drafts
