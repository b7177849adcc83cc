// Steps that are launched before the one before them has ended (engine_step.cc), on a double of a
// device. Oracle: the same requests on the CPU, where there are none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device_double.h"
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

const std::filesystem::path kFolder = QUIRE_SOURCE_DIR "/models/cardfile/draft";
constexpr std::int32_t kBlockTokens = 8;
constexpr std::int64_t kPlentyOfKv = std::int64_t{1} << 26;

using Channels = std::vector<std::shared_ptr<Channel>>;
using Outputs = std::vector<GenerationOutput>;

EngineOptions options_of(std::int64_t kv_budget_bytes) {
  EngineOptions options;
  options.block_tokens = kBlockTokens;
  options.kv_budget_bytes = kv_budget_bytes;
  options.threads = 2;
  return options;
}

std::shared_ptr<Engine> open_cpu(std::int64_t kv_budget_bytes = kPlentyOfKv) {
  return engine_of(runtime::Runtime::start(kFolder, options_of(kv_budget_bytes)).value());
}

// An engine on a double of a device.
struct Double {
  std::shared_ptr<DoubleScript> script = std::make_shared<DoubleScript>();
  std::shared_ptr<Engine> engine;

  explicit Double(DoubleScript with = {}, std::int64_t kv_budget_bytes = kPlentyOfKv,
                  const std::filesystem::path& folder = kFolder) {
    *script = std::move(with);
    EngineOptions options = options_of(kv_budget_bytes);
    options.model.placement.instead = [script = script](auto cpu) {
      return std::make_unique<DeviceDouble>(std::move(cpu), script);
    };
    engine = engine_of(runtime::Runtime::start(folder, options).value());
  }
};

NewRequest request_of(std::uint32_t number, SamplingParams params) {
  std::vector<TokenId> prompt;
  for (std::uint32_t token = 0; token < 5 + number % 13; ++token) {
    prompt.push_back(static_cast<TokenId>(300 + (token * 7 + number * 31) % 1000));
  }
  return {.prompt = std::move(prompt), .params = std::move(params)};
}

const SamplingParams kGreedy = {.temperature = 0, .max_tokens = 40, .ignore_eos = true};

SamplingParams seeded(std::uint64_t seed, double temperature = 1.5) {
  SamplingParams params = kGreedy;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

std::vector<NewRequest> some_requests() {
  std::vector<NewRequest> requests;
  for (std::uint32_t i = 0; i < 6; ++i) {
    requests.push_back(request_of(i, i % 2 == 0 ? kGreedy : seeded(i)));
    requests.back().params.max_tokens = 40 + static_cast<std::int32_t>(i % 3) * 7;
    if (i % 3 == 0) {
      requests.back().params.logprobs = 2;
    }
  }
  return requests;
}

Outputs outputs_of(const Channels& channels) {
  Outputs outputs;
  for (const auto& channel : channels) {
    auto output = channel->take_generation();
    EXPECT_TRUE(output.ok()) << output.error().message;
    outputs.push_back(output.ok() ? std::move(output).value() : GenerationOutput());
  }
  return outputs;
}

Outputs answers(Engine& engine, std::vector<NewRequest> requests) {
  return outputs_of(engine.submit(std::move(requests)).value());
}

void expect_same(const TokenLogprobs& got, const TokenLogprobs& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, want[i].first) << "place " << i;
    EXPECT_NEAR(got[i].second, want[i].second, 1e-5) << "place " << i;
  }
}

void expect_same(const Outputs& got, const Outputs& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token_ids, want[i].token_ids) << "request " << i;
    EXPECT_EQ(got[i].text, want[i].text) << "request " << i;
    EXPECT_EQ(got[i].finish_reason, want[i].finish_reason) << "request " << i;
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size()) << "request " << i;
    for (std::size_t j = 0; j < got[i].logprobs.size(); ++j) {
      expect_same(got[i].logprobs[j], want[i].logprobs[j]);
    }
  }
}

// Expects as many tokens booked as their callers got: none for a caller that has ended before.
void expect_all_booked(Engine& engine, const Outputs& got) {
  std::int64_t tokens = 0;
  for (const GenerationOutput& output : got) {
    tokens += std::ssize(output.token_ids);
  }
  EXPECT_EQ(engine.stats().value().tokens_generated, tokens);
  EXPECT_EQ(engine.stats().value().requests_finished, std::ssize(got));
}

// Nobody holds a block, and all are there.
void expect_nothing_held(Engine& engine) {
  const EngineStats stats = engine.stats().value();
  EXPECT_EQ(stats.ledger.blocks_in_use, 0);
  EXPECT_EQ(stats.ledger.blocks_free + stats.ledger.blocks_cached, stats.ledger.blocks_total);
  EXPECT_EQ(stats.requests_running, 0);
}

TEST(StepsAhead, GiveTheTokensOfStepsOneAfterTheOther) {
  const Double device;
  expect_same(answers(*device.engine, some_requests()), answers(*open_cpu(), some_requests()));
  const EngineStats stats = device.engine->stats().value();
  EXPECT_GE(stats.steps_ahead, 35) << "of " << stats.steps;
  EXPECT_EQ(device.script->launched_ahead, stats.steps_ahead);
  expect_nothing_held(*device.engine);
}

TEST(StepsAhead, AreNotThereOnTheCpu) {
  const auto cpu = open_cpu();
  (void)answers(*cpu, some_requests());
  EXPECT_EQ(cpu->stats().value().steps_ahead, 0);
}

// The first stops where the plain engine's answer has its 12th token, in the middle of its life as
// the scheduler knows it: a step further is running then.
TEST(StepsAhead, ARequestThatStopsByItsTokenEndsThereAndTheOthersGoOn) {
  const auto cpu = open_cpu();
  std::vector<NewRequest> requests = some_requests();
  const TokenId last = answers(*cpu, requests)[1].token_ids[11];
  requests[1].params.stop_token_ids = {last};
  const Double device;
  const Outputs got = answers(*device.engine, requests);
  EXPECT_EQ(got[1].finish_reason, FinishReason::kStop);
  EXPECT_LE(got[1].token_ids.size(), 12);
  expect_same(got, answers(*cpu, requests));
  EXPECT_GE(device.engine->stats().value().steps_ahead, 30);
  expect_all_booked(*device.engine, got);
  expect_nothing_held(*device.engine);
}

TEST(StepsAhead, ARequestThatStopsByItsTextEndsThere) {
  const auto cpu = open_cpu();
  std::vector<NewRequest> requests = some_requests();
  const std::string text = answers(*cpu, requests)[3].text;
  ASSERT_GT(text.size(), 12);
  requests[3].params.stop = {text.substr(text.size() / 2, 4)};
  const Double device;
  const Outputs got = answers(*device.engine, requests);
  EXPECT_EQ(got[3].finish_reason, FinishReason::kStop);
  expect_same(got, answers(*cpu, requests));
}

// A token that is first met late in an answer, but before its end.
TokenId met_late(std::span<const TokenId> answer) {
  auto at = answer.end() - 5;
  while (std::find(answer.begin(), at, *at) != at) {
    --at;
  }
  return *at;
}

// A caller who sees the end sees the blocks free, though a step with his row still runs.
TEST(StepsAhead, TheBlocksOfAStoppedRequestAreFreeAtItsEnd) {
  const auto cpu = open_cpu();
  SamplingParams params =
      seeded(1, /*temperature=*/4);  // many tokens, whatever the instruction set
  const TokenId last = met_late(answers(*cpu, {request_of(1, params)})[0].token_ids);
  params.stop_token_ids = {last};
  const Double device;
  for (int round = 0; round < 20; ++round) {
    (void)answers(*device.engine, {request_of(1, params)});
    EXPECT_EQ(device.engine->stats().value().ledger.blocks_in_use, 0);
  }
  EXPECT_GT(device.script->launched_ahead, 100);
}

TEST(StepsAhead, AnAbortedRequestEndsAndTheOthersGoOn) {
  const auto cpu = open_cpu();
  const Double device;
  std::vector<NewRequest> requests = some_requests();
  for (NewRequest& request : requests) {
    request.params.max_tokens = 200;
    request.streaming = true;
  }
  const Channels channels = device.engine->submit(requests).value();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(channels[2]->next().value());
  }
  EXPECT_TRUE(device.engine->abort(channels[2]->id()).value());
  Outputs got = outputs_of(channels);
  Outputs want = answers(*cpu, requests);
  EXPECT_EQ(got[2].finish_reason, FinishReason::kCancelled);
  want[2].token_ids.resize(got[2].token_ids.size());
  EXPECT_EQ(got[2].token_ids, want[2].token_ids);
  got.erase(got.begin() + 2);
  want.erase(want.begin() + 2);
  expect_same(got, want);
  expect_nothing_held(*device.engine);
}

// Blocks behind the window go while the step behind still runs.
TEST(StepsAhead, MoveAWindow) {
  const std::filesystem::path folder = QUIRE_SOURCE_DIR "/tests/golden/model/mistral_window";
  const auto cpu = engine_of(runtime::Runtime::start(folder, options_of(kPlentyOfKv)).value());
  std::vector<NewRequest> requests = some_requests();
  for (NewRequest& request : requests) {
    for (TokenId& id : request.prompt) {
      id %= cpu->model_config().vocab_size;
    }
  }
  const Double device({}, kPlentyOfKv, folder);
  expect_same(answers(*device.engine, requests), answers(*cpu, requests));
  EXPECT_GE(device.engine->stats().value().steps_ahead, 35);
  expect_nothing_held(*device.engine);
}

TEST(StepsAhead, SurvivePreemption) {
  const std::int64_t block = open_cpu()->stats().value().block_bytes;
  const auto cpu = open_cpu(22 * block);
  const Double device({}, 22 * block);
  const Outputs got = answers(*device.engine, some_requests());
  const EngineStats stats = device.engine->stats().value();
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(stats.steps_ahead, 10);
  expect_same(got, answers(*cpu, some_requests()));
  expect_nothing_held(*device.engine);
}

// Penalties are made of the tokens before: such rows are chosen on the device, but not ahead.
TEST(StepsAhead, WaitForTokensThatDecideTheNextChoice) {
  std::vector<NewRequest> requests = some_requests();
  requests[0].params.presence_penalty = 0.5;
  requests[0].params.max_tokens = 60;  // longer than the others
  const Double device;
  expect_same(answers(*device.engine, requests), answers(*open_cpu(), requests));
  EXPECT_EQ(device.engine->stats().value().steps_ahead, 0);
}

// Those of the logits before the bias.
TEST(StepsAhead, TellLogProbabilities) {
  const auto cpu = open_cpu();
  std::vector<NewRequest> requests = some_requests();
  const TokenId unlikely = 777;
  for (std::size_t i = 0; const std::int32_t logprobs : {0, 1, 5, 1024}) {
    requests[i++].params.logprobs = logprobs;
  }
  requests[1].params.logit_bias = {{unlikely, 50.0}};
  const Double device;
  const Outputs got = answers(*device.engine, requests);
  expect_same(got, answers(*cpu, requests));
  EXPECT_GE(device.engine->stats().value().steps_ahead, 35);
  ASSERT_EQ(got[1].token_ids.front(), unlikely);
  EXPECT_EQ(got[1].logprobs.front().size(), 2);
  EXPECT_LT(got[1].logprobs.front().back().second, -1);
}

TEST(StepsAhead, KeepBiasesAndFewestTokens) {
  const auto cpu = open_cpu();
  std::vector<NewRequest> requests = some_requests();
  const Outputs plain = answers(*cpu, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].params.logit_bias = {{plain[i].token_ids[3], -5.0}};
    requests[i].params.stop_token_ids = {plain[i].token_ids[5], plain[i].token_ids[25]};
    requests[i].params.min_tokens = 20;
  }
  const Double device;
  expect_same(answers(*device.engine, requests), answers(*cpu, requests));
  EXPECT_GT(device.engine->stats().value().steps_ahead, 10);
}

TEST(StepsAhead, ATokenThatTheDeviceLeavesToTheHostIsChosenThere) {
  const auto cpu = open_cpu();
  const Outputs want = answers(*cpu, some_requests());
  for (const int launch : {1, 5, 6, 17}) {
    const Double device({.leaves_to_host = launch});
    expect_same(answers(*device.engine, some_requests()), want);
    EXPECT_EQ(device.script->abandoned, launch == 1 ? 0 : 1) << launch;
    expect_nothing_held(*device.engine);
  }
}

TEST(StepsAhead, ALaunchThatIsRefusedAheadIsMadeInItsTurn) {
  const Double device({.refuses_launch = 9});
  expect_same(answers(*device.engine, some_requests()), answers(*open_cpu(), some_requests()));
  EXPECT_EQ(device.script->abandoned, 0);
  expect_nothing_held(*device.engine);
}

TEST(StepsAhead, AFailureEndsAllRequestsAndTheEngineGoesOn) {
  const Double device({.fails_in_await = 12});
  for (const auto& channel : device.engine->submit(some_requests()).value()) {
    const auto output = channel->take_generation();
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.error().code, ErrorCode::kDevice);
  }
  expect_nothing_held(*device.engine);
  expect_same(answers(*device.engine, some_requests()), answers(*open_cpu(), some_requests()));
}

TEST(StepsAhead, ClosingEndsRequestsInTheMiddle) {
  const Double device;
  std::vector<NewRequest> requests = some_requests();
  requests[0].streaming = true;
  for (NewRequest& request : requests) {
    request.params.max_tokens = 400;
  }
  const Channels channels = device.engine->submit(std::move(requests)).value();
  ASSERT_TRUE(channels[0]->next().value());
  device.engine->close();
  for (const auto& channel : channels) {
    EXPECT_EQ(channel->take_generation().error().code, ErrorCode::kClosed);
  }
}

// Requests come, stop by tokens and are aborted while others run; who finishes says what he says
// alone.
TEST(StepsAhead, RandomComingsAndGoingsChangeNobodysTokens) {
  const auto cpu = open_cpu();
  const std::int64_t block = cpu->stats().value().block_bytes;
  std::int64_t ahead = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t bound) { return random() % bound; };
    const Double device({}, (20 + below(60)) * block);
    Channels channels;
    std::vector<NewRequest> requests;
    for (int wave = 0; wave < 8; ++wave) {
      for (std::uint32_t i = 0; i < 1 + below(3); ++i) {
        SamplingParams params = below(2) == 0 ? kGreedy : seeded(random());
        params.max_tokens = static_cast<std::int32_t>(1 + below(50));
        params.stop_token_ids = {static_cast<TokenId>(below(1500)),
                                 static_cast<TokenId>(below(1500))};
        requests.push_back(request_of(below(40), params));
        channels.push_back(device.engine->submit({requests.back()}).value().front());
      }
      if (below(3) == 0) {
        (void)device.engine->abort(
            channels[below(static_cast<std::uint32_t>(channels.size()))]->id());
      }
      (void)channels[below(static_cast<std::uint32_t>(channels.size()))]->wait_end(
          static_cast<int>(below(5)));
    }
    const Outputs got = outputs_of(channels);
    const Outputs alone = answers(*cpu, requests);
    for (std::size_t i = 0; i < got.size(); ++i) {
      std::vector<TokenId> want = alone[i].token_ids;
      if (got[i].finish_reason == FinishReason::kCancelled) {
        want.resize(got[i].token_ids.size());
      }
      EXPECT_EQ(got[i].token_ids, want) << "request " << i << ", seed " << seed;
    }
    expect_nothing_held(*device.engine);
    ahead += device.engine->stats().value().steps_ahead;
  }
  EXPECT_GT(ahead, 100);
}

}  // namespace
}  // namespace quire::engine
