// Guesses of all kinds for tests of speculation: chains and trees, right, wrong and at random, and
// requests that choose tokens in all ways.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
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

using Texts = std::vector<std::vector<TokenId>>;  // prompts with their outputs
using Guess = std::function<std::vector<TokenId>(std::span<const TokenId>, std::int32_t)>;

inline const std::filesystem::path kFolder = QUIRE_SOURCE_DIR "/models/cardfile/draft";
inline const std::filesystem::path kGolden = QUIRE_SOURCE_DIR "/tests/golden/model";
inline const std::filesystem::path kWindowed = kGolden / "mistral_window";
inline constexpr std::int64_t kPlentyOfKv = std::int64_t{1} << 26;

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
  double state_share = EngineOptions().state_share;
};

inline std::shared_ptr<Engine> open(const Site& site,
                                    const drafts::SpeculationOptions& speculation = {},
                                    std::shared_ptr<Drafter> drafter = nullptr) {
  EngineOptions options;
  options.block_tokens = site.block_tokens;
  options.kv_budget_bytes = site.kv_budget_bytes;
  options.max_batch_tokens = site.max_batch_tokens;
  options.threads = 2;
  options.state_share = site.state_share;
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

inline std::shared_ptr<Engine> open_with(const Site& site, Guess guess,
                                         std::int32_t max_tokens = 5) {
  return open(site, {.method = drafts::Method::kCustom, .max_tokens = max_tokens, .adapt = false},
              std::make_shared<Guesses>(std::move(guess)));
}

inline std::shared_ptr<Engine> open_with_trees(const Site& site, Trees::Guess guess) {
  return open(site,
              {.method = drafts::Method::kCustom, .max_tokens = 4, .width = 3, .adapt = false},
              std::make_shared<Trees>(std::move(guess)));
}

inline NewRequest request_of(std::uint32_t number, SamplingParams params, std::int32_t vocab) {
  std::vector<TokenId> prompt;
  for (std::uint32_t token = 0; token < 5 + number % 13; ++token) {
    prompt.push_back(static_cast<TokenId>((300 + (token * 7 + number * 31) % 1000)) % vocab);
  }
  return {.prompt = std::move(prompt), .params = std::move(params)};
}

// Requests that choose in all ways that a token can be chosen.
inline std::vector<NewRequest> all_ways(std::int32_t vocab) {
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

inline std::vector<NewRequest> ways_at(const Site& site, std::int32_t vocab) {
  std::vector<NewRequest> requests = all_ways(vocab);
  if (site.on_double) {  // it cuts nothing
    requests[5].params.top_k = 0;
    requests[5].params.top_p = 1;
    requests[5].params.min_p = 0;
  }
  return requests;
}

using Outputs = std::vector<GenerationOutput>;

inline Outputs answers(Engine& engine, std::vector<NewRequest> requests) {
  Outputs outputs;
  const auto channels = engine.submit(std::move(requests)).value();
  for (const auto& channel : channels) {
    auto output = channel->take_generation();
    EXPECT_TRUE(output.ok()) << output.error().message;
    outputs.push_back(output.ok() ? std::move(output).value() : GenerationOutput());
  }
  return outputs;
}

inline void expect_same(const Outputs& got, const Outputs& want) {
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

inline void expect_nothing_held(Engine& engine) {
  const EngineStats stats = engine.stats().value();
  EXPECT_EQ(stats.ledger.blocks_in_use, 0);
  EXPECT_EQ(stats.ledger.blocks_free + stats.ledger.blocks_cached, stats.ledger.blocks_total);
  EXPECT_EQ(stats.requests_running, 0);
}

inline Texts texts_of(const std::vector<NewRequest>& requests, const Outputs& outputs) {
  Texts texts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    texts.push_back(requests[i].prompt);
    texts.back().insert(texts.back().end(), outputs[i].token_ids.begin(),
                        outputs[i].token_ids.end());
  }
  return texts;
}

// Returns what the oracle says behind `tokens`.
inline std::vector<TokenId> known_rest(const Texts& texts, std::span<const TokenId> tokens) {
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
inline std::vector<NamedGuess> kinds_of(const Texts& texts, std::int32_t vocab, TokenId eos) {
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
inline std::vector<NamedTree> trees_of(const Texts& texts, std::int32_t vocab) {
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

}  // namespace quire::engine
