// Speculation: guessed tokens that the model checks many at a time. Oracle: the same requests on an
// engine that guesses nothing. No guess may change an id, a text, a log probability or a count of
// blocks, be it right, wrong, at random, too long, or not of the vocabulary.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device_double.h"
#include "quire/drafter.h"
#include "quire/drafts/options.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

using Texts = std::vector<std::vector<TokenId>>;  // prompts with their outputs
using Guess = std::function<std::vector<TokenId>(std::span<const TokenId>, std::int32_t)>;

const std::filesystem::path kFolder = QUIRE_SOURCE_DIR "/models/cardfile/draft";
const std::filesystem::path kGolden = QUIRE_SOURCE_DIR "/tests/golden/model";
const std::filesystem::path kWindowed = kGolden / "mistral_window";
constexpr std::int64_t kPlentyOfKv = std::int64_t{1} << 26;

class Guesses final : public Drafter {
 public:
  explicit Guesses(Guess guess) : guess_(std::move(guess)) {}
  std::vector<TokenId> propose(std::span<const TokenId> tokens, std::int32_t most) override {
    return guess_(tokens, most);
  }

 private:
  Guess guess_;
};

// Guesses trees.
class Trees final : public Drafter {
 public:
  using Guess = std::function<DraftTree(std::span<const TokenId>, std::int32_t, std::int32_t)>;

  explicit Trees(Guess guess) : guess_(std::move(guess)) {}
  std::vector<TokenId> propose(std::span<const TokenId> /*tokens*/,
                               std::int32_t /*most*/) override {
    return {};
  }
  DraftTree propose_tree(std::span<const TokenId> tokens, std::int32_t most,
                         std::int32_t most_in_tree) override {
    return guess_(tokens, most, most_in_tree);
  }

 private:
  Guess guess_;
};

struct Site {
  std::filesystem::path folder = kFolder;
  std::string kv_dtype = "auto";
  std::int32_t block_tokens = 8;
  std::int64_t kv_budget_bytes = kPlentyOfKv;
  std::int32_t max_batch_tokens = 2048;
  bool on_double = false;
};

std::shared_ptr<Engine> open(const Site& site, const drafts::SpeculationOptions& speculation = {},
                             std::shared_ptr<Drafter> drafter = nullptr) {
  EngineOptions options;
  options.block_tokens = site.block_tokens;
  options.kv_budget_bytes = site.kv_budget_bytes;
  options.max_batch_tokens = site.max_batch_tokens;
  options.threads = 2;
  options.model.kv_dtype = site.kv_dtype;
  options.speculation = speculation;
  options.drafter = std::move(drafter);
  if (site.on_double) {
    options.model.placement.instead = [](auto cpu) {
      return std::make_unique<DeviceDouble>(std::move(cpu), std::make_shared<DoubleScript>());
    };
  }
  return engine_of(runtime::Runtime::start(site.folder, options).value());
}

std::shared_ptr<Engine> open_with(const Site& site, Guess guess, std::int32_t max_tokens = 5) {
  return open(site, {.method = drafts::Method::kCustom, .max_tokens = max_tokens, .adapt = false},
              std::make_shared<Guesses>(std::move(guess)));
}

std::shared_ptr<Engine> open_with_trees(const Site& site, Trees::Guess guess) {
  return open(site,
              {.method = drafts::Method::kCustom, .max_tokens = 4, .width = 3, .adapt = false},
              std::make_shared<Trees>(std::move(guess)));
}

NewRequest request_of(std::uint32_t number, SamplingParams params, std::int32_t vocab) {
  std::vector<TokenId> prompt;
  for (std::uint32_t token = 0; token < 5 + number % 13; ++token) {
    prompt.push_back(static_cast<TokenId>((300 + (token * 7 + number * 31) % 1000)) % vocab);
  }
  return {.prompt = std::move(prompt), .params = std::move(params)};
}

// Requests that choose in all ways that a token can be chosen.
std::vector<NewRequest> all_ways(std::int32_t vocab) {
  const SamplingParams greedy = {.temperature = 0, .max_tokens = 37, .ignore_eos = true};
  std::vector<SamplingParams> ways(8, greedy);
  ways[1].temperature = 1.5;
  ways[1].seed = 7;
  ways[2].repetition_penalty = 1.3;
  ways[2].presence_penalty = 0.5;
  ways[2].frequency_penalty = 0.3;
  ways[2].max_tokens = 44;
  ways[3].temperature = 0.7;
  ways[3].seed = 8;
  ways[3].frequency_penalty = 0.9;
  ways[3].logprobs = 3;
  ways[4].logprobs = 0;
  ways[4].logit_bias = {{5, 2.0}, {17, -3.0}};
  ways[5].temperature = 1;
  ways[5].seed = 9;
  ways[5].top_k = 20;
  ways[5].top_p = 0.9;
  ways[5].min_p = 0.01;
  ways[6].ignore_eos = false;
  ways[6].min_tokens = 3;
  ways[7].max_tokens = 1;
  std::vector<NewRequest> requests;
  for (std::uint32_t i = 0; i < ways.size(); ++i) {
    requests.push_back(request_of(i, ways[i], vocab));
  }
  return requests;
}

std::vector<NewRequest> ways_at(const Site& site, std::int32_t vocab) {
  std::vector<NewRequest> requests = all_ways(vocab);
  if (site.on_double) {  // it cuts nothing
    requests[5].params.top_k = 0;
    requests[5].params.top_p = 1;
    requests[5].params.min_p = 0;
  }
  return requests;
}

using Outputs = std::vector<GenerationOutput>;

Outputs answers(Engine& engine, std::vector<NewRequest> requests) {
  Outputs outputs;
  const auto channels = engine.submit(std::move(requests)).value();
  for (const auto& channel : channels) {
    auto output = channel->take_generation();
    EXPECT_TRUE(output.ok()) << output.error().message;
    outputs.push_back(output.ok() ? std::move(output).value() : GenerationOutput());
  }
  return outputs;
}

void expect_same(const Outputs& got, const Outputs& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(got[i].token_ids, want[i].token_ids);
    EXPECT_EQ(got[i].text, want[i].text);
    EXPECT_EQ(got[i].finish_reason, want[i].finish_reason);
    EXPECT_EQ(got[i].stopped_by.kind, want[i].stopped_by.kind);
    EXPECT_EQ(got[i].reuse.grade, want[i].reuse.grade);
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
    for (std::size_t j = 0; j < got[i].logprobs.size(); ++j) {
      ASSERT_EQ(got[i].logprobs[j].size(), want[i].logprobs[j].size());
      for (std::size_t k = 0; k < got[i].logprobs[j].size(); ++k) {
        EXPECT_EQ(got[i].logprobs[j][k].first, want[i].logprobs[j][k].first);
        EXPECT_NEAR(got[i].logprobs[j][k].second, want[i].logprobs[j][k].second, 1e-5);
      }
    }
  }
}

void expect_nothing_held(Engine& engine) {
  const EngineStats stats = engine.stats().value();
  EXPECT_EQ(stats.ledger.blocks_in_use, 0);
  EXPECT_EQ(stats.ledger.blocks_free + stats.ledger.blocks_cached, stats.ledger.blocks_total);
  EXPECT_EQ(stats.requests_running, 0);
}

Texts texts_of(const std::vector<NewRequest>& requests, const Outputs& outputs) {
  Texts texts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    texts.push_back(requests[i].prompt);
    texts.back().insert(texts.back().end(), outputs[i].token_ids.begin(),
                        outputs[i].token_ids.end());
  }
  return texts;
}

// Returns what the oracle says behind `tokens`.
std::vector<TokenId> known_rest(const Texts& texts, std::span<const TokenId> tokens) {
  for (const std::vector<TokenId>& text : texts) {
    if (text.size() > tokens.size() &&
        std::ranges::equal(tokens, std::span(text).first(tokens.size()))) {
      return {text.begin() + std::ssize(tokens), text.end()};
    }
  }
  return {};
}

struct NamedGuess {
  const char* name;
  Guess guess;
};

// Guesses of all kinds, made of what is right.
std::vector<NamedGuess> kinds_of(const Texts& texts, std::int32_t vocab, TokenId eos) {
  const auto right = [texts](std::span<const TokenId> tokens, std::int32_t) {
    return known_rest(texts, tokens);  // may be longer than what was asked for
  };
  const auto draws = std::make_shared<std::mt19937>(1);
  return {{"right", right},
          {"wrong",
           [=](std::span<const TokenId> tokens, std::int32_t most) {
             std::vector<TokenId> guess = right(tokens, most);
             for (TokenId& id : guess) {
               id = (id + 1) % vocab;
             }
             return guess;
           }},
          {"mixed",
           [=](std::span<const TokenId> tokens, std::int32_t most) {
             std::vector<TokenId> guess = right(tokens, most);
             for (TokenId& id : guess) {
               id = (*draws)() % 3 == 0 ? (id + 1) % vocab : id;
             }
             guess.resize(std::min<std::size_t>(guess.size(), (*draws)() % 6));
             return guess;
           }},
          {"random",
           [=](std::span<const TokenId>, std::int32_t) {
             std::vector<TokenId> guess((*draws)() % 40);
             for (TokenId& id : guess) {
               id = static_cast<TokenId>((*draws)() % static_cast<unsigned>(vocab + 3)) - 1;
             }
             return guess;
           }},
          {"an end inside",
           [=](std::span<const TokenId> tokens, std::int32_t most) {
             std::vector<TokenId> guess = right(tokens, most);
             guess.insert(guess.begin() + std::min<std::ptrdiff_t>(2, std::ssize(guess)), eos);
             return guess;
           }},
          {"thrown", [](std::span<const TokenId>, std::int32_t) -> std::vector<TokenId> {
             throw std::runtime_error("no guess");
           }}};
}

struct NamedTree {
  const char* name;
  Trees::Guess guess;
};

// Trees of all kinds, made of what is right.
std::vector<NamedTree> trees_of(const Texts& texts, std::int32_t vocab) {
  const auto draws = std::make_shared<std::mt19937>(2);
  const auto right = [texts](std::span<const TokenId> tokens, std::int32_t most) {
    std::vector<TokenId> rest = known_rest(texts, tokens);
    rest.resize(std::min(rest.size(), static_cast<std::size_t>(most)));
    return rest;
  };
  // A stem of which the first `same` tokens are right, and a branch there that is right.
  const auto beside = [=](std::int32_t same) {
    return [=](std::span<const TokenId> tokens, std::int32_t most, std::int32_t) {
      const std::vector<TokenId> rest = right(tokens, most);
      DraftTree tree;
      for (std::int32_t i = 0; i < std::ssize(rest); ++i) {
        const TokenId id = rest[static_cast<std::size_t>(i)];
        tree.tokens.push_back(i < same ? id : (id + 1) % vocab);
        tree.parents.push_back(i - 1);
      }
      for (std::int32_t i = same; i < std::ssize(rest); ++i) {
        tree.parents.push_back(i == same ? i - 1
                                         : static_cast<std::int32_t>(tree.tokens.size()) - 1);
        tree.tokens.push_back(rest[static_cast<std::size_t>(i)]);
      }
      return tree;
    };
  };
  const auto at_random = [=](std::span<const TokenId> tokens, std::int32_t most,
                             std::int32_t most_in_tree) {
    const std::vector<TokenId> rest = right(tokens, most);
    DraftTree tree;
    std::vector<std::int32_t> path;
    while (std::ssize(tree.tokens) < most_in_tree + 2) {
      path.resize(std::min<std::size_t>((*draws)() % 6, path.size()));
      const bool known = path.size() < rest.size() && (*draws)() % 3 != 0;
      const auto any = static_cast<TokenId>((*draws)() % static_cast<unsigned>(vocab));
      tree.tokens.push_back(known ? rest[path.size()] : any);
      tree.parents.push_back(path.empty() ? -1 : path.back());
      path.push_back(static_cast<std::int32_t>(tree.tokens.size()) - 1);
    }
    return tree;
  };
  const auto no_tree = [=](std::span<const TokenId>, std::int32_t, std::int32_t) {
    DraftTree tree;
    for (int i = 0; i < 20; ++i) {
      tree.tokens.push_back(static_cast<TokenId>((*draws)() % 40) - 1);
      tree.parents.push_back(static_cast<std::int32_t>((*draws)() % 7) - 2);
    }
    return tree;
  };
  return {{"beside the stem", beside(0)},
          {"behind a part of the stem", beside(2)},
          {"at random", at_random},
          {"no tree", no_tree}};
}

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
    if (std::string(name) == "beside the stem" && has_room && stats.ledger.states_total == 0) {
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

TEST(SpeculationScenes, SurvivePreemption) {
  Site site;
  const auto roomy = open(site);
  const std::vector<NewRequest> requests = all_ways(roomy->model_config().vocab_size);
  const Outputs want = answers(*roomy, requests);
  site.kv_budget_bytes = 24 * roomy->stats().value().block_bytes;
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
      const auto engine =
          open_with(site, [texts](auto tokens, auto) { return known_rest(texts, tokens); }, 7);
      expect_same(answers(*engine, requests), first);
      EXPECT_GT(engine->stats().value().tokens_accepted, 30);
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
