// A prompt of 32,768 tokens beside requests that generate, with a bound on gaps between tokens.
// Long, since the attention of such a prompt takes its time. The oracle is a run without a bound.
// How long gaps are is measured by bench/gap_bench.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <thread>
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

constexpr std::int32_t kPromptTokens = 32'768, kVocab = 200, kStreams = 4;
constexpr double kBoundMs = 2;  // far below what a step of 2,048 rows takes anywhere

std::vector<TokenId> random_ids(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(count);
  std::ranges::generate(ids, [&] { return static_cast<TokenId>(random() % kVocab); });
  return ids;
}

struct Outcome {
  std::int64_t meanwhile = 0;     // tokens of all streams while the prompt is computed
  std::vector<TokenId> answer;    // to the prompt
  std::vector<TokenId> streamed;  // the first tokens of the first stream
};

// Lets streams generate, then asks for the prompt, and counts the tokens that come meanwhile.
Outcome run(const LLMOptions& options) {
  const auto folder = chunks::write_checkpoint("gap_bound", {.layers = 2, .max_positions = 40'000});
  LLM llm = LLM::open(folder, options).value();
  const SamplingParams endless{.temperature = 0, .max_tokens = 30'000, .ignore_eos = true};
  std::vector<Stream> streams;
  for (std::uint32_t i = 0; i < kStreams; ++i) {
    streams.push_back(llm.stream(random_ids(64, i + 1), endless).value());
  }
  std::vector<TokenId> first;
  std::array<std::atomic<std::int64_t>, kStreams> seen{};
  std::vector<std::jthread> readers;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    readers.emplace_back([&, i] {
      for (auto delta = streams[i].next(); delta.ok() && *delta; delta = streams[i].next()) {
        const std::vector<TokenId>& ids = (*delta)->token_ids;
        if (i == 0) {
          first.insert(first.end(), ids.begin(), ids.end());
        }
        seen[i] += std::ssize(ids);
      }
    });
  }
  while (std::ranges::any_of(seen, [](const auto& count) { return count < 200; })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const auto all_seen = [&] {
    std::int64_t sum = 0;
    for (const auto& count : seen) {
      sum += count;
    }
    return sum;
  };
  const std::int64_t before = all_seen();
  Outcome outcome;
  outcome.answer = llm.generate(random_ids(kPromptTokens, 99),
                                {.temperature = 0, .max_tokens = 4, .ignore_eos = true})
                       .value()
                       .token_ids;
  outcome.meanwhile = all_seen() - before;
  for (Stream& stream : streams) {
    (void)llm.abort(stream.request_id());
  }
  readers.clear();  // joins them
  outcome.streamed.assign(first.begin(), first.begin() + 200);
  return outcome;
}

TEST(GapBound, APromptOf32kTokensIsCutWhileOthersGenerateAndNoTokenChanges) {
  const LLMOptions plain{.kv_budget_bytes = std::int64_t{1} << 28, .threads = 1};
  LLMOptions bounded = plain;
  bounded.max_decode_gap_ms = kBoundMs;
  const Outcome free = run(plain), cut = run(bounded);
  EXPECT_EQ(cut.answer, free.answer) << "no bit depends on where a prompt is cut";
  EXPECT_EQ(cut.streamed, free.streamed);
  EXPECT_GE(free.meanwhile, kPromptTokens / 2048 * kStreams / 2) << "a step of 2,048 rows at most";
  EXPECT_GT(cut.meanwhile, 4 * free.meanwhile) << "the streams get more steps";
}

}  // namespace
}  // namespace quire
