// A prompt of 32,768 tokens beside requests that generate, with a bound on gaps between tokens.
// Long, since the attention of such a prompt takes its time. The oracle is the clock, at the
// caller.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "tiny_checkpoint.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::vector<double>;

constexpr std::int32_t kPromptTokens = 32'768, kVocab = 200;
constexpr std::int32_t kStreams = 8, kStreamTokens = 8'000;  // so that a plain step takes a while
constexpr double kBound = 0.1;
constexpr int kRounds = 4;  // the best counts, since what else runs here makes steps late

std::vector<TokenId> random_ids(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(count);
  std::ranges::generate(ids, [&] { return static_cast<TokenId>(random() % kVocab); });
  return ids;
}

double percentile(Seconds values, double share) {
  std::ranges::sort(values);
  return values.at(static_cast<std::size_t>(share * static_cast<double>(values.size() - 1)));
}

struct Outcome {
  Seconds gaps;                   // of all streams while the prompt is computed
  double plain = 0;               // a step of the streams alone, as late as one of a hundred
  std::vector<TokenId> answer;    // to the prompt
  std::vector<TokenId> streamed;  // the first tokens of the first stream
};

// Lets streams generate, then asks for the prompt, and notes when each token comes meanwhile.
Outcome run(const LLMOptions& options) {
  const auto folder = chunks::write_checkpoint("gap_bound", {.layers = 2, .max_positions = 40'000});
  LLM llm = LLM::open(folder, options).value();
  const SamplingParams endless{.temperature = 0, .max_tokens = 30'000, .ignore_eos = true};
  std::vector<Stream> streams;
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    streams.push_back(llm.stream(random_ids(kStreamTokens, i + 1), endless).value());
  }
  std::vector<std::vector<Clock::time_point>> times(kStreams);
  std::vector<std::vector<TokenId>> tokens(kStreams);
  std::array<std::atomic<std::int64_t>, kStreams> seen{};
  std::vector<std::jthread> readers;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    readers.emplace_back([&, i] {
      for (auto delta = streams[i].next(); delta.ok() && *delta; delta = streams[i].next()) {
        times[i].push_back(Clock::now());
        ++seen[i];
        tokens[i].insert(tokens[i].end(), (*delta)->token_ids.begin(), (*delta)->token_ids.end());
      }
    });
  }
  while (std::ranges::any_of(seen, [](const auto& count) { return count < 400; })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Clock::time_point begin = Clock::now();
  Outcome outcome;  // all but the last layer of the model attends with every row of a prompt
  outcome.answer = llm.generate(random_ids(kPromptTokens, 99),
                                {.temperature = 0, .max_tokens = 4, .ignore_eos = true})
                       .value()
                       .token_ids;
  const Clock::time_point end = Clock::now();
  for (Stream& stream : streams) {
    (void)llm.abort(stream.request_id());
  }
  readers.clear();  // joins them
  Seconds before;
  for (const std::vector<Clock::time_point>& each : times) {
    for (std::size_t i = 100; i < each.size(); ++i) {
      const double gap = std::chrono::duration<double>(each[i] - each[i - 1]).count();
      if (each[i] < begin) {
        before.push_back(gap);
      } else if (each[i - 1] < end) {
        outcome.gaps.push_back(gap);
      }
    }
  }
  outcome.plain = percentile(before, 0.99);
  outcome.streamed.assign(tokens[0].begin(), tokens[0].begin() + 200);
  return outcome;
}

TEST(GapBound, APromptOf32kTokensKeepsTheP99GapWithinTheBoundAndOneStep) {
  const LLMOptions plain{.kv_budget_bytes = std::int64_t{1} << 28, .threads = 1};
  LLMOptions bounded = plain;
  bounded.max_decode_gap_ms = 1000 * kBound;
  const Outcome free = run(plain);
  Outcome cut;
  bool holds = false;
  for (int round = 0; round < kRounds && !holds; ++round) {
    cut = run(bounded);
    EXPECT_EQ(cut.answer, free.answer) << "no bit depends on where a prompt is cut";
    EXPECT_EQ(cut.streamed, free.streamed);
    holds = percentile(cut.gaps, 0.99) <= kBound + cut.plain;
  }
  ASSERT_GE(cut.gaps.size(), 100U);
  EXPECT_TRUE(holds) << percentile(cut.gaps, 0.99) << " s, and a plain step takes " << cut.plain;
  EXPECT_GT(percentile(free.gaps, 0.99), kBound + free.plain) << "the bound has something to do";
}

}  // namespace
}  // namespace quire
