// Speculation: guessed tokens that the model checks many at a time. Oracle: the same requests on an
// engine that guesses nothing. No guess may change an id, a text, a log probability or a count of
// blocks, be it right, wrong, at random, too long, or not of the vocabulary.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "guesses.h"
#include "quire/base/test_length.h"
#include "quire/drafts/options.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

class Speculation : public ::testing::TestWithParam<std::pair<const char*, Site>> {};

TEST_P(Speculation, ChangesNothingWhateverIsGuessed) {
  const Site& site = GetParam().second;
  const auto plain = open(site);
  const std::int32_t vocab = plain->model_config().vocab_size;
  const std::vector<NewRequest> requests = ways_at(site, vocab);
  const Outputs want = answers(*plain, requests);
  const EngineStats before = plain->stats().value();
  for (const auto& [name, guess] : kinds_of(texts_of(requests, want), vocab, 2)) {
    SCOPED_TRACE(name);
    const auto engine = open_with(site, guess);
    const Outputs got = answers(*engine, requests);
    expect_same(got, want);
    expect_nothing_held(*engine);
    const EngineStats stats = engine->stats().value();
    EXPECT_EQ(stats.tokens_generated, before.tokens_generated);
    EXPECT_LE(stats.tokens_accepted, stats.tokens_drafted);
    std::int64_t drafted = 0;
    std::int64_t accepted = 0;
    for (const GenerationOutput& output : got) {
      drafted += output.usage.drafted_tokens;
      accepted += output.usage.accepted_tokens;
      EXPECT_LT(output.usage.accepted_tokens,
                std::max<std::int64_t>(output.usage.completion_tokens, 1));
    }
    EXPECT_EQ(drafted, stats.tokens_drafted);
    EXPECT_EQ(accepted, stats.tokens_accepted);
    EXPECT_EQ(stats.speculative_steps > 0, drafted > 0);
    if (std::string(name) == "right") {
      EXPECT_EQ(accepted, drafted);
      EXPECT_GT(accepted, 0);
      EXPECT_LT(stats.steps, before.steps);
    } else if (std::string(name) == "wrong") {
      EXPECT_EQ(accepted, 0);
      EXPECT_GT(drafted, 0);
    } else if (std::string(name) == "thrown") {
      EXPECT_EQ(drafted, 0);
    }
    if (std::string(name) == "mixed") {
      expect_same(answers(*engine, requests), want);  // and behind what is cached
    }
  }
}

TEST_P(Speculation, ChangesNothingWhateverTreeIsGuessed) {
  const Site& site = GetParam().second;
  const auto plain = open(site);
  const std::int32_t vocab = plain->model_config().vocab_size;
  const std::vector<NewRequest> requests = ways_at(site, vocab);
  const Outputs want = answers(*plain, requests);
  const EngineStats before = plain->stats().value();
  for (const auto& [name, guess] : trees_of(texts_of(requests, want), vocab)) {
    SCOPED_TRACE(name);
    const auto engine = open_with_trees(site, guess);
    expect_same(answers(*engine, requests), want);
    expect_nothing_held(*engine);
    const EngineStats stats = engine->stats().value();
    EXPECT_EQ(stats.ledger.blocks_cached, before.ledger.blocks_cached);
    EXPECT_EQ(stats.tokens_generated, before.tokens_generated);
    const bool has_room = site.max_batch_tokens > 100;
    if (std::string(name) == "beside the stem" && has_room) {
      EXPECT_GT(stats.branches_linked, 20);
      EXPECT_LT(stats.steps, before.steps);
    }
    if (std::string(name) == "at random") {
      expect_same(answers(*engine, requests), want);  // and behind what is cached
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, Speculation,
    ::testing::Values(
        std::pair{"plain", Site{}}, std::pair{"long_blocks", Site{.block_tokens = 32}},
        std::pair{"short_blocks", Site{.block_tokens = 2}},
        std::pair{"window", Site{.folder = kWindowed}}, std::pair{"int8", Site{.kv_dtype = "int8"}},
        std::pair{"fp8", Site{.kv_dtype = "fp8"}},
        std::pair{"int4", Site{.kv_dtype = "int4", .block_tokens = 32}},
        std::pair{"few_rows", Site{.max_batch_tokens = 9}},
        std::pair{"device", Site{.on_double = true}},
        std::pair{"short_convolutions", Site{.folder = kGolden / "lfm2"}},
        std::pair{"gated_delta", Site{.folder = kGolden / "qwen3_next"}},
        std::pair{"state_space", Site{.folder = kGolden / "nemotron_h", .kv_dtype = "int8"}}),
    [](const auto& info) { return std::string(info.param.first); });

class SpeculationUnderPressure
    : public ::testing::TestWithParam<std::pair<const char*, std::filesystem::path>> {};

TEST_P(SpeculationUnderPressure, SurvivesPreemption) {
  Site site{.folder = GetParam().second};
  const auto roomy = open(site);
  const std::vector<NewRequest> requests = all_ways(roomy->model_config().vocab_size);
  const Outputs want = answers(*roomy, requests);
  const std::int64_t states = 10 * roomy->model_config().state_geometry().state_bytes;
  site.kv_budget_bytes = 24 * roomy->stats().value().block_bytes + states;
  if (states > 0) {
    site.state_share = static_cast<double>(states) / static_cast<double>(site.kv_budget_bytes);
  }
  for (const auto& [name, guess] :
       kinds_of(texts_of(requests, want), roomy->model_config().vocab_size, 2)) {
    SCOPED_TRACE(name);
    const auto engine = open_with(site, guess);
    const Outputs got = answers(*engine, requests);
    EXPECT_GT(engine->stats().value().preemptions, 0);
    expect_same(got, want);
    expect_nothing_held(*engine);
  }
  for (const auto& [name, guess] :
       trees_of(texts_of(requests, want), roomy->model_config().vocab_size)) {
    SCOPED_TRACE(name);
    const auto engine = open_with_trees(site, guess);
    expect_same(answers(*engine, requests), want);
    EXPECT_GT(engine->stats().value().preemptions, 0);
    expect_nothing_held(*engine);
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, SpeculationUnderPressure,
                         ::testing::Values(std::pair{"plain", kFolder},
                                           std::pair{"gated_delta", kGolden / "qwen3_next"},
                                           std::pair{"state_space", kGolden / "nemotron_h"}),
                         [](const auto& info) { return std::string(info.param.first); });

// The stem is right for one token, a branch there for two more, and a branch of that branch for a
// fourth. A stop id ends the output within the first branch. Its KV is found later.
TEST(SpeculationScenes, AnOutputThatEndsWithinABranchLeavesTheKvOfItsTokens) {
  for (const std::filesystem::path& folder : {kFolder, kGolden / "qwen3_next"}) {
    SCOPED_TRACE(folder.string());
    const Site site{.folder = folder, .block_tokens = 2};
    const auto plain = open(site);
    const std::int32_t vocab = plain->model_config().vocab_size;
    std::vector<NewRequest> requests = {
        request_of(0, {.temperature = 1.5, .max_tokens = 9, .ignore_eos = true, .seed = 5}, vocab)};
    const Texts texts = texts_of(requests, answers(*plain, requests));
    const std::span<const TokenId> said = std::span(texts[0]).last(9);
    ASSERT_EQ(std::ranges::find(said, said[3]) - said.begin(), 3);
    requests[0].params.stop_token_ids = {said[3]};
    const auto engine = open_with_trees(site, [&](auto tokens, std::int32_t most, auto) {
      const std::vector<TokenId> rest = known_rest(texts, tokens);
      if (tokens.size() != requests[0].prompt.size() + 1 || most < 4 || rest.size() < 4) {
        return DraftTree();
      }
      const auto wrong = [&](std::size_t at) { return (rest[at] + 1) % vocab; };
      return DraftTree{
          .tokens = {rest[0], wrong(1), wrong(2), wrong(3), rest[1], rest[2], wrong(3), rest[3]},
          .parents = {-1, 0, 1, 2, 0, 4, 5, 5}};
    });
    const Outputs got = answers(*engine, requests);
    expect_same(got, answers(*plain, requests));
    EXPECT_EQ(got[0].usage.accepted_tokens, 3);
    EXPECT_EQ(engine->stats().value().branches_linked, 1);
    requests[0].params.stop_token_ids.clear();
    requests[0].prompt.assign(texts[0].begin(), texts[0].end() - 5);
    requests[0].prompt.push_back(3);
    requests[0].params.logprobs = 3;
    const auto fresh = open(site);
    expect_same(answers(*engine, requests), answers(*fresh, requests));
    expect_nothing_held(*engine);
  }
}

// Oracle: an engine of the same size that guesses nothing.
TEST(SpeculationScenes, GuessesEvictNothingWhereNoBlockIsFree) {
  constexpr std::int32_t kBlocks = 320;
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  const std::vector<NewRequest> requests = {all_ways(vocab)[1]};
  const Outputs want = answers(*plain, requests);
  const Texts texts = texts_of(requests, want);
  Site full;
  full.kv_budget_bytes = kBlocks * plain->stats().value().block_bytes;
  const auto fill_and_ask = [&](Engine& engine) {
    std::mt19937 random(3);
    for (int i = 0; i < 13; ++i) {
      std::vector<TokenId> prompt(25 * static_cast<std::size_t>(full.block_tokens));
      std::ranges::generate(prompt, [&] { return static_cast<TokenId>(20 + random() % 900); });
      answers(engine, {{.prompt = prompt, .params = {.max_tokens = 1}}});
    }
    EXPECT_EQ(engine.stats().value().ledger.blocks_free, 0);
    expect_same(answers(engine, requests), want);
    expect_nothing_held(engine);
    return engine.stats().value();
  };
  const EngineStats expected = fill_and_ask(*open(full));
  const auto wrong = kinds_of(texts, vocab, 2)[1].guess;
  for (const auto& engine :
       {open_with(full, wrong, 40), open_with_trees(full, trees_of(texts, vocab)[0].guess)}) {
    const EngineStats stats = fill_and_ask(*engine);
    EXPECT_GT(stats.tokens_drafted, 20) << "in the block that the request has";
    EXPECT_EQ(stats.ledger.evictions, expected.ledger.evictions);
    EXPECT_EQ(stats.ledger.blocks_cached, expected.ledger.blocks_cached);
  }
}

// The output ends in the middle of a guess: by a stop id, by a stop string, by its length.
TEST(SpeculationScenes, AnOutputEndsWhereItWouldWithoutGuesses) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  std::vector<NewRequest> requests(
      3, request_of(4, {.temperature = 0, .max_tokens = 30, .ignore_eos = true}, vocab));
  const Outputs whole = answers(*plain, requests);
  const auto engine = open_with({}, [texts = texts_of(requests, whole)](auto tokens, auto) {
    return known_rest(texts, tokens);
  });
  requests[0].params.stop_token_ids = {whole[0].token_ids[13]};
  ASSERT_GT(whole[0].text.size(), 30);
  requests[1].params.stop = {whole[0].text.substr(20, 5)};
  requests[2].params.max_tokens = 9;
  const Outputs want = answers(*plain, requests);
  const Outputs got = answers(*engine, requests);
  expect_same(got, want);
  EXPECT_LE(want[0].token_ids.size(), 14);
  EXPECT_EQ(want[1].stopped_by.kind, StoppedBy::Kind::kStopString);
  EXPECT_EQ(got[2].usage.accepted_tokens, 6) << "of 9: one of each of three steps is drawn";
  expect_nothing_held(*engine);
}

TEST(SpeculationScenes, ARequestMayAskForFewerGuessesOrNone) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  std::vector<NewRequest> requests(
      3, request_of(1, {.temperature = 0, .max_tokens = 24, .ignore_eos = true}, vocab));
  requests[1].params.speculate = 0;
  requests[2].params.speculate = 1;
  const Outputs want = answers(*plain, requests);
  std::int32_t most_asked = 0;
  const auto engine =
      open_with({}, [&, texts = texts_of(requests, want)](auto tokens, std::int32_t most) {
        most_asked = std::max(most_asked, most);
        return known_rest(texts, tokens);
      });
  const Outputs got = answers(*engine, requests);
  expect_same(got, want);
  EXPECT_GT(got[0].usage.drafted_tokens, 0);
  EXPECT_EQ(got[1].usage.drafted_tokens, 0);
  EXPECT_EQ(got[2].usage.accepted_tokens, 11);
  EXPECT_EQ(most_asked, 5);
}

TEST(SpeculationScenes, GuessesThatNeverHoldAreMadeNoMore) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  const NewRequest request =
      request_of(1, {.temperature = 0, .max_tokens = 150, .ignore_eos = true}, vocab);
  const Outputs want = answers(*plain, {request});
  const auto engine =
      open({}, {.method = drafts::Method::kCustom, .max_tokens = 5},
           std::make_shared<Guesses>([&, texts = texts_of({request}, want)](auto tokens, auto) {
             std::vector<TokenId> guess = known_rest(texts, tokens);
             for (TokenId& id : guess) {
               id = (id + 1) % vocab;
             }
             return guess;
           }));
  EXPECT_LT(answers(*engine, {request})[0].usage.drafted_tokens, 110);
  const Outputs later = answers(*engine, {request});
  expect_same(later, want);
  EXPECT_LT(later[0].usage.drafted_tokens, 40) << "it knows of the first request";
}

TEST(SpeculationScenes, AnAbortInTheMiddleLeavesNothingBehind) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  std::vector<NewRequest> requests(
      2, request_of(1, {.temperature = 0, .max_tokens = 1500, .ignore_eos = true}, vocab));
  const Outputs want = answers(*plain, requests);
  const auto engine = open_with({}, [texts = texts_of(requests, want)](auto tokens, auto) {
    return known_rest(texts, tokens);
  });
  requests[0].streaming = true;
  const auto channels = engine->submit(requests).value();
  ASSERT_TRUE(channels[0]->next().value());
  EXPECT_TRUE(engine->abort(channels[0]->id()).value());
  const GenerationOutput ended = channels[0]->take_generation().value();
  EXPECT_EQ(ended.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(std::ranges::equal(ended.token_ids,
                                 std::span(want[0].token_ids).first(ended.token_ids.size())));
  EXPECT_EQ(channels[1]->take_generation().value().token_ids, want[1].token_ids);
  expect_nothing_held(*engine);
}

TEST(SpeculationScenes, EachMethodChangesNothing) {
  const auto plain = open({});
  std::vector<NewRequest> requests = all_ways(plain->model_config().vocab_size);
  for (NewRequest& request : requests) {  // long enough for a small model to repeat itself
    request.params.max_tokens = request.params.max_tokens == 1 ? 1 : 120;
  }
  const Outputs want = answers(*plain, requests);
  for (const drafts::Method method : {drafts::Method::kNgram, drafts::Method::kSuffix}) {
    for (const bool adapt : {false, true}) {
      const auto engine = open({}, {.method = method, .max_tokens = 8, .adapt = adapt});
      expect_same(answers(*engine, requests), want);
      const EngineStats first = engine->stats().value();
      EXPECT_GT(first.tokens_drafted, 0);
      expect_same(answers(*engine, requests), want);  // with what was learnt of the first time
      expect_nothing_held(*engine);
      if (method == drafts::Method::kSuffix && !adapt) {
        EXPECT_GT(engine->stats().value().tokens_accepted, 3 * first.tokens_accepted / 2)
            << "it has heard these outputs before";
      }
    }
  }
}

// The model is its own draft model: every greedy guess is right.
TEST(SpeculationScenes, ADraftModelChangesNothingAndIsFollowed) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  const std::vector<NewRequest> requests = all_ways(vocab);
  const Outputs want = answers(*plain, requests);
  const drafts::SpeculationOptions options{
      .method = drafts::Method::kDraft, .max_tokens = 4, .model = kFolder, .adapt = false};
  const auto engine = open({}, options);
  const Outputs got = answers(*engine, requests);
  expect_same(got, want);
  EXPECT_EQ(got[0].usage.accepted_tokens, got[0].usage.drafted_tokens);
  EXPECT_GT(got[0].usage.accepted_tokens, 20);
  expect_same(answers(*engine, requests), want);
  expect_nothing_held(*engine);
  EXPECT_LT(engine->stats().value().ledger.blocks_total, plain->stats().value().ledger.blocks_total)
      << "the budget is for both";

  Site tight;
  tight.kv_budget_bytes = 48 * plain->stats().value().block_bytes;
  const auto small = open(tight, options);
  expect_same(answers(*small, requests), want);
  EXPECT_GT(small->stats().value().preemptions, 0);
  expect_nothing_held(*small);
}

// Tokens that are drawn are often not the likeliest ones, but stand beside them.
TEST(SpeculationScenes, ADraftModelGuessesTrees) {
  const auto plain = open({});
  std::vector<NewRequest> requests = all_ways(plain->model_config().vocab_size);
  requests[1].params.temperature = 1;
  const Outputs want = answers(*plain, requests);
  drafts::SpeculationOptions options{.method = drafts::Method::kDraft,
                                     .max_tokens = 4,
                                     .model = kFolder,
                                     .width = 2,
                                     .adapt = false};
  const auto accepted_of_drawn = [&] {
    const auto engine = open({}, options);
    const Outputs got = answers(*engine, requests);
    expect_same(got, want);
    expect_nothing_held(*engine);
    EXPECT_EQ(engine->stats().value().branches_linked > 0, options.width > 1);
    return got[1].usage.accepted_tokens + got[3].usage.accepted_tokens +
           got[5].usage.accepted_tokens;
  };
  const std::int64_t by_trees = accepted_of_drawn();
  options.width = 1;
  EXPECT_GT(by_trees, accepted_of_drawn());

  options.width = 3;
  options.adapt = true;
  Site tight;
  tight.kv_budget_bytes = 48 * plain->stats().value().block_bytes;
  const auto small = open(tight, options);
  expect_same(answers(*small, requests), want);
  expect_same(answers(*small, requests), want);
  expect_nothing_held(*small);
}

TEST(SpeculationScenes, ADraftModelWithOtherTokensIsRefused) {
  EngineOptions options;
  options.kv_budget_bytes = kPlentyOfKv;
  options.speculation = {.method = drafts::Method::kDraft, .max_tokens = 4, .model = kWindowed};
  const auto opened = runtime::Runtime::start(kFolder, options);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(opened.error().message.find("another tokenizer"), std::string::npos);
}

TEST(SpeculationScenes, TheSuffixesOfATenantAreItsOwn) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  std::vector<NewRequest> requests = {
      request_of(3, {.temperature = 2, .max_tokens = 60, .ignore_eos = true, .seed = 3}, vocab)};
  const auto engine =
      open({}, {.method = drafts::Method::kSuffix, .max_tokens = 8, .adapt = false});
  requests[0].salt = "a";
  const std::int64_t first = answers(*engine, requests)[0].usage.accepted_tokens;
  requests[0].salt = "b";
  EXPECT_EQ(answers(*engine, requests)[0].usage.accepted_tokens, first);
  requests[0].salt = "a";
  EXPECT_GT(answers(*engine, requests)[0].usage.accepted_tokens, first + 20);
}

// The second turn goes on from the restore point at the end of the first answer, whose last rows
// were guessed.
TEST(SpeculationScenes, AStateBehindGuessesIsThatOfItsTokens) {
  for (const char* model : {"lfm2", "qwen3_next", "nemotron_h"}) {
    for (const char* kv_dtype : {"auto", "int8"}) {
      SCOPED_TRACE(std::string(model) + " " + kv_dtype);
      Site site{.folder = kGolden / model, .kv_dtype = kv_dtype};
      const auto plain = open(site);
      const std::int32_t vocab = plain->model_config().vocab_size;
      std::vector<NewRequest> requests(2);
      for (std::uint32_t i = 0; i < 2; ++i) {
        requests[i] =
            request_of(i, {.temperature = 0, .max_tokens = 31, .ignore_eos = true}, vocab);
      }
      const Outputs first = answers(*plain, requests);
      const Texts texts = texts_of(requests, first);
      std::vector<NewRequest> later = requests;
      for (std::size_t i = 0; i < later.size(); ++i) {
        later[i].prompt = texts[i];
        later[i].prompt.push_back(3);
      }
      const Outputs second = answers(*plain, later);
      const auto by_chains =
          open_with(site, [texts](auto tokens, auto) { return known_rest(texts, tokens); }, 7);
      const auto by_trees = open_with_trees(site, trees_of(texts, vocab)[1].guess);
      for (const auto& engine : {by_chains, by_trees}) {
        expect_same(answers(*engine, requests), first);
        EXPECT_GT(engine->stats().value().tokens_accepted, 30);
        EXPECT_EQ(engine->stats().value().branches_linked > 0, engine == by_trees);
        const Outputs got = answers(*engine, later);
        expect_same(got, second);
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].usage.cached_tokens, second[i].usage.cached_tokens);
        }
        EXPECT_EQ(engine->stats().value().ledger.restore_points,
                  plain->stats().value().ledger.restore_points);
        expect_nothing_held(*engine);
      }
    }
  }
}

// Requests go on from texts that were said before, at random places, and some are aborted.
TEST(SpeculationScenes, RandomRequestsOverStatesEqualOnesWithoutGuesses) {
  for (const char* model : {"lfm2", "qwen3_next", "nemotron_h"}) {
    SCOPED_TRACE(model);
    const Site site{.folder = kGolden / model, .block_tokens = 4};
    const auto plain = open(site);
    const std::int32_t vocab = plain->model_config().vocab_size;
    Texts known;
    const auto engine = open_with_trees(site, [&](auto tokens, auto most, auto most_in_tree) {
      return trees_of(known, vocab)[tokens.size() % 3].guess(tokens, most, most_in_tree);
    });
    std::mt19937 random(6);
    const auto below = [&](std::size_t bound) {
      return static_cast<std::int32_t>(random() % bound);
    };
    for (int round = 0; round < 12; ++round) {
      std::vector<NewRequest> requests;
      for (int i = 0; i < 3; ++i) {
        NewRequest request = request_of(random() % 20,
                                        {.temperature = below(3) / 2.0F,
                                         .max_tokens = 2 + below(20),
                                         .ignore_eos = true,
                                         .seed = random() % 9},
                                        vocab);
        if (!known.empty() && below(3) > 0) {
          request.prompt = known[static_cast<std::size_t>(below(known.size()))];
          request.prompt.resize(static_cast<std::size_t>(1 + below(request.prompt.size())));
        }
        requests.push_back(std::move(request));
      }
      const Outputs want = answers(*plain, requests);
      std::ranges::copy(texts_of(requests, want), std::back_inserter(known));
      const auto aborted = engine->submit({requests[static_cast<std::size_t>(below(3))]}).value();
      const auto channels = engine->submit(requests).value();
      EXPECT_TRUE(engine->abort(aborted[0]->id()).ok());
      EXPECT_TRUE(aborted[0]->take_generation().ok());
      for (std::size_t i = 0; i < channels.size(); ++i) {
        EXPECT_EQ(channels[i]->take_generation().value().token_ids, want[i].token_ids) << round;
      }
      expect_nothing_held(*engine);
    }
    EXPECT_GT(engine->stats().value().branches_linked, 20);
  }
}

// Many draws among the four likeliest tokens, of which guesses were right or wrong. Oracle:
// the probabilities that the model tells of each row, summed by rank; chi-square with 3 degrees.
TEST(SpeculationScenes, DrawsBehindGuessesHaveTheProbabilitiesOfTheModel) {
  const auto engine =
      open({.folder = kGolden / "llama_gqa", .block_tokens = 32},
           {.method = drafts::Method::kNgram, .max_tokens = 4, .min_match = 1, .adapt = false});
  const std::int64_t wanted = base::test_length<std::int64_t>(1'000'000, 100'000);
  std::array<double, 4> drawn{};
  std::array<double, 4> expected{};
  std::int64_t draws = 0;
  for (std::uint64_t seed = 1; draws < wanted;) {
    std::vector<NewRequest> requests;
    for (int i = 0; i < 64; ++i) {
      requests.push_back(request_of(static_cast<std::uint32_t>(i),
                                    {.temperature = 1,
                                     .top_k = 4,
                                     .max_tokens = 400,
                                     .ignore_eos = true,
                                     .seed = seed++,
                                     .logprobs = 4},
                                    engine->model_config().vocab_size));
    }
    for (const GenerationOutput& output : answers(*engine, std::move(requests))) {
      for (std::size_t i = 0; i < output.token_ids.size(); ++i) {
        std::array<double, 4> shares{};
        for (std::size_t rank = 0; rank < 4; ++rank) {
          const auto& [id, logprob] = output.logprobs[i][rank];
          shares[rank] = std::exp(static_cast<double>(logprob));
          drawn[rank] += id == output.token_ids[i] ? 1 : 0;
        }
        const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
        for (std::size_t rank = 0; rank < 4; ++rank) {
          expected[rank] += shares[rank] / all;
        }
        ++draws;
      }
    }
  }
  double chi_square = 0;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    chi_square += std::pow(drawn[rank] - expected[rank], 2) / expected[rank];
  }
  EXPECT_LT(chi_square, 21.1) << "which one run of ten thousand exceeds";
  EXPECT_EQ(std::accumulate(drawn.begin(), drawn.end(), 0.0), static_cast<double>(draws));
  const EngineStats stats = engine->stats().value();
  EXPECT_GT(stats.tokens_accepted, draws / 50);
  EXPECT_GT(stats.tokens_drafted, stats.tokens_accepted);
}

// Threshold 1e-9 takes every guess that the model thinks possible at all.
TEST(SpeculationScenes, AThresholdTakesWrongGuessesAndSaysSo) {
  const auto plain = open({});
  const std::int32_t vocab = plain->model_config().vocab_size;
  std::vector<NewRequest> requests = {request_of(
      2, {.temperature = 0, .max_tokens = 12, .ignore_eos = true, .logprobs = 1}, vocab)};
  const Outputs want = answers(*plain, requests);
  const Guess sevens = [](auto, std::int32_t most) {
    return std::vector<TokenId>(static_cast<std::size_t>(most), 7);
  };
  drafts::SpeculationOptions options{
      .method = drafts::Method::kCustom, .max_tokens = 3, .adapt = false, .threshold = 1e-300};
  const auto lossy = open({}, options, std::make_shared<Guesses>(sevens));
  const GenerationOutput got = answers(*lossy, requests).front();
  EXPECT_EQ(std::ranges::count(got.token_ids, 7), got.usage.accepted_tokens);
  EXPECT_EQ(got.usage.accepted_tokens, 8) << "three of four, while three fit";
  EXPECT_EQ(got.reuse.grade, ReuseGrade::kApproximate);
  for (std::size_t i = 0; i < got.token_ids.size(); ++i) {
    EXPECT_TRUE(std::ranges::any_of(
        got.logprobs[i], [&](const auto& entry) { return entry.first == got.token_ids[i]; }));
  }
  options.threshold = 1.0;
  const auto strict = open({}, options, std::make_shared<Guesses>(sevens));
  const GenerationOutput same = answers(*strict, requests).front();
  EXPECT_EQ(same.token_ids, want[0].token_ids);
}

}  // namespace
}  // namespace quire::engine
