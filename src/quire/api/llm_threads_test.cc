// Many threads on one LLM; run under ThreadSanitizer in CI.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

std::vector<TokenId> ids_for(int thread, int turn) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 12 + (thread * 7 + turn * 13) % 40; ++i) {
    ids.push_back(10 + (thread % 4 * 131 + i * 17) % 1500);
  }
  return ids;
}

// Does one thread's share: a mix of calls, all of which must succeed.
void use_llm(LLM& llm, int thread) {
  const SamplingParams params{.temperature = 0, .max_tokens = 6, .ignore_eos = true};
  for (int turn = 0; turn < 4; ++turn) {
    const auto ids = ids_for(thread, turn);
    switch ((thread + turn) % 4) {
      case 0:
        EXPECT_TRUE(llm.generate(ids, params).ok());
        break;
      case 1: {
        auto stream = llm.stream(ids, {.max_tokens = 500, .ignore_eos = true});
        ASSERT_TRUE(stream.ok());
        EXPECT_TRUE(stream->next().ok());
        break;  // dropped unfinished
      }
      case 2: {
        auto stream = llm.stream(ids, {.max_tokens = 500, .ignore_eos = true});
        ASSERT_TRUE(stream.ok());
        EXPECT_TRUE(llm.abort(stream->request_id()).ok());
        break;
      }
      default:
        EXPECT_TRUE(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast).ok());
    }
    EXPECT_TRUE(llm.stats().ok());
  }
}

TEST(LLMThreads, SixteenThreadsOfMixedCallsLeaveEveryBlockFree) {
  auto opened =
      LLM::open(kModel, here({.block_tokens = 8, .kv_budget_bytes = 512 * 8 * 4096, .threads = 2}));
  ASSERT_TRUE(opened.ok());
  LLM llm = std::move(opened).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&llm, i] { use_llm(llm, i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& [name, value] : llm.stats().value()) {
    if (name == "blocks_in_use" || name == "requests_running" || name == "requests_waiting") {
      EXPECT_EQ(value, 0) << name;
    }
  }
}

// Older requests grow while it is computed, 16 rows at a time, until they take its blocks.
TEST(LLMThreads, AForwardPassThatMadeWayHasEachRowOnce) {
  LLM roomy = LLM::open(kModel, here({.block_tokens = 16})).value();
  const auto block_bytes = static_cast<std::int64_t>(stat(roomy, "block_bytes"));
  LLM tight =
      LLM::open(
          kModel,
          here({.block_tokens = 16, .kv_budget_bytes = 24 * block_bytes, .max_batch_tokens = 16}))
          .value();
  const SamplingParams params{.temperature = 0, .max_tokens = 90, .ignore_eos = true};
  for (std::uint32_t round = 0; round < 12; ++round) {
    const auto ids = some_ids(150 + round, 1000 + round);
    const auto reuse = round % 2 == 0 ? ForwardReuse::kExact : ForwardReuse::kNone;
    const ForwardOutput wanted = roomy.forward(ids, ForwardReuse::kNone).value();
    std::vector<Stream> older;
    for (std::uint32_t i = 0; i < 3; ++i) {
      older.push_back(tight.stream(some_ids(40 + round, 100 * round + i), params).value());
      ASSERT_TRUE(older.back().next().ok());  // it runs
    }
    const ForwardOutput output = tight.forward(ids, reuse).value();
    ASSERT_EQ(output.rows + output.cached_tokens, std::ssize(ids)) << "round " << round;
    ASSERT_EQ(std::ssize(output.logits), output.rows * output.vocab_size);
    ASSERT_TRUE(std::equal(output.logits.begin(), output.logits.end(),
                           wanted.logits.end() - std::ssize(output.logits)))
        << "round " << round;
  }
  EXPECT_GT(stat(tight, "preemptions"), 0);
}

// Others that ask meanwhile take nothing from the answer.
TEST(LLMThreads, StatsShowWhatTheirCallerHasGivenUpBefore) {
  auto opened = LLM::open(kModel, here({.block_tokens = 8, .threads = 1}));
  ASSERT_TRUE(opened.ok());
  LLM llm = std::move(opened).value();
  std::atomic<bool> done = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!done) {
        EXPECT_TRUE(llm.stats().ok());
      }
    });
  }
  for (int turn = 0; turn < 400; ++turn) {
    {
      const auto held = llm.sequence(ids_for(0, 0));
    }
    const double in_use = stat(llm, "blocks_in_use");
    EXPECT_EQ(in_use, 0) << "turn " << turn;
    if (in_use != 0) {
      break;
    }
  }
  done = true;
  for (std::thread& thread : others) {
    thread.join();
  }
}

TEST(LLMThreads, ClosingWhileOthersWaitEndsThemWithClosed) {
  auto opened = LLM::open(kModel, here({.threads = 2}));
  ASSERT_TRUE(opened.ok());
  LLM llm = std::move(opened).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&llm, i] {
      while (true) {
        const auto output = llm.generate(ids_for(i, 0), {.max_tokens = 50, .ignore_eos = true});
        if (!output.ok()) {
          EXPECT_EQ(output.error().code, ErrorCode::kClosed);
          return;
        }
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  llm.close();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace quire
