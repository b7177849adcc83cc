// Many threads on one registry of chunks; run under ThreadSanitizer in CI.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {
namespace {

Ids chunk_ids(int first, int size) {
  Ids ids;
  for (int i = 0; i < size; ++i) {
    ids.push_back(10 + (first * 131 + i * 17) % 1500);
  }
  return ids;
}

// Returns whether a composition whose chunks others delete, or a registration that they crowd out,
// may fail so. Any other error is a fault.
bool may_fail(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kOutOfBlocks;
}

template <class T>
void expect_fair(const Result<T>& result, std::atomic<int>& served) {
  if (result.ok()) {
    ++served;
    return;
  }
  EXPECT_TRUE(may_fail(result.error().code)) << result.error().message;
}

// Registers three system chunks, eight contexts and two queries, shared by all threads.
Result<CompositionSpec> register_some(ChunkedLLM& llm, int salt) {
  std::vector<ChunkContent> chunks = {
      {.content = chunk_ids(salt % 3, 20), .type = ChunkType::kSystemPrompt}};
  for (int i = 0; i < 3; ++i) {
    chunks.push_back({.content = chunk_ids(10 + (salt + i * 3) % 8, 9 + salt % 8)});
  }
  chunks.push_back({.content = chunk_ids(30 + salt % 2, 5), .type = ChunkType::kQuery});
  auto ids = llm.register_chunks(chunks);
  if (!ids.ok()) {
    return std::move(ids).error();
  }
  return CompositionSpec{.system_chunk_id = ids->front(),
                         .context_chunk_ids = {ids->begin() + 1, ids->end() - 1},
                         .query_chunk_id = ids->back()};
}

// Does one thread's share: a mix of everything.
void use_chunks(ChunkedLLM& llm, int thread, std::atomic<int>& served) {
  const SamplingParams params{.temperature = 0, .max_tokens = 4, .ignore_eos = true};
  for (int turn = 0; turn < 6; ++turn) {
    auto registered = register_some(llm, thread * 5 + turn * 3);
    expect_fair(registered, served);
    if (!registered.ok()) {
      continue;
    }
    CompositionSpec spec = std::move(registered).value();
    std::rotate(spec.context_chunk_ids.begin(), spec.context_chunk_ids.begin() + turn % 3,
                spec.context_chunk_ids.end());
    spec.mode = turn % 3 == 0 ? ReuseMode::kIndependent : ReuseMode::kAnchored;
    switch ((thread + turn) % 8) {
      case 0: {
        const std::vector<CompositionSpec> twice(2, spec);
        expect_fair(llm.batch_generate_from_chunks(twice, {&params, 1}), served);
        break;
      }
      case 1: {
        auto stream = llm.stream_from_chunks(spec, {.max_tokens = 500, .ignore_eos = true});
        expect_fair(stream, served);
        if (stream.ok()) {
          EXPECT_TRUE(stream->next().ok());
        }
        break;  // dropped unfinished
      }
      case 2:
        EXPECT_TRUE(llm.delete_chunk(spec.context_chunk_ids[0]).ok());
        expect_fair(llm.generate_from_chunks(spec, params), served);
        break;
      case 3:
        expect_fair(llm.logits_from_chunks(spec), served);
        EXPECT_TRUE(llm.clear_chunks(ChunkType::kContext).ok());
        break;
      case 4:
        expect_fair(llm.update_chunk(spec.system_chunk_id, {.priority = turn}), served);
        EXPECT_TRUE(llm.evict_unused_chunks(0).ok());
        break;
      case 5:
        expect_fair(llm.preview_composition(spec), served);
        EXPECT_TRUE(llm.llm().generate(chunk_ids(thread, 15), params).ok());
        break;
      default:
        expect_fair(llm.generate_from_chunks(spec, params), served);
    }
    EXPECT_TRUE(llm.list_chunks().ok());
    EXPECT_TRUE(llm.chunk_stats().ok());
  }
}

TEST(ChunksThreads, SixteenThreadsOfMixedCallsLeaveEveryBlockFree) {
  auto opened = ChunkedLLM::open(
      kModel, here({.block_tokens = 8, .kv_budget_bytes = 512 * 8 * 4096, .threads = 2}),
      {.max_chunks = 32});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ChunkedLLM llm = std::move(opened).value();
  std::atomic<int> served = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&llm, &served, i] { use_chunks(llm, i, served); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GT(served, 96) << "the walk reached what it is for";
  ASSERT_TRUE(llm.clear_chunks().ok());
  ASSERT_TRUE(llm.llm().clear_prefix_cache().ok());
  EXPECT_TRUE(llm.list_chunks()->empty());
  EXPECT_EQ(llm.chunk_stats()->memory_used_bytes, 0);
  double total = -1;
  double free = -2;
  for (const auto& [name, value] : llm.llm().stats().value()) {
    total = name == "blocks_total" ? value : total;
    free = name == "blocks_free" ? value : free;
    if (name == "blocks_in_use" || name == "requests_running" || name == "requests_waiting") {
      EXPECT_EQ(value, 0) << name;
    }
  }
  EXPECT_EQ(free, total);
}

TEST(ChunksThreads, ClosingWhileOthersRegisterAndComposeEndsThemWithClosed) {
  auto opened = ChunkedLLM::open(kModel, here({.threads = 2}));
  ASSERT_TRUE(opened.ok());
  ChunkedLLM llm = std::move(opened).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&llm, i] {
      for (int turn = 0;; ++turn) {
        const auto spec = register_some(llm, i * 7 + turn);
        const auto output = spec.ok() ? llm.generate_from_chunks(*spec, {.max_tokens = 20})
                                      : Result<GenerationOutput>(spec.error());
        if (!output.ok()) {
          EXPECT_EQ(output.error().code, ErrorCode::kClosed) << output.error().message;
          return;
        }
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  llm.llm().close();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Leaves room for a prefill to take a while: a token a step.
ChunkedLLM open_slow() {
  return ChunkedLLM::open(kModel, here({.max_batch_tokens = 1, .threads = 1})).value();
}

// Two calls wait for one prefill. `late` comes when `first` is at work; `interrupts_first` says
// which of the two gives up once both wait.
using InterruptedCall = std::function<Status(const Interrupt&)>;
void expect_one_stays(const InterruptedCall& first, const InterruptedCall& late, LLM& llm,
                      bool interrupts_first) {
  std::atomic<bool> both_wait = false;
  Status first_ended;
  std::thread other([&] { first_ended = first([&] { return interrupts_first && both_wait; }); });
  while (stat(llm, "requests_running") == 0) {
    std::this_thread::yield();
  }
  const Status late_ended = late([&] {
    both_wait = true;
    return !interrupts_first;
  });
  other.join();
  const Status& gave_up = interrupts_first ? first_ended : late_ended;
  const Status& stayed = interrupts_first ? late_ended : first_ended;
  ASSERT_FALSE(gave_up.ok()) << "the prefill was over before anybody gave up";
  EXPECT_EQ(gave_up.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(stayed.ok()) << stayed.error().message;
}

TEST(ChunksThreads, WhoGivesUpAnEqualRegistrationTakesItFromNobody) {
  for (const bool interrupts_first : {false, true}) {
    ChunkedLLM llm = open_slow();
    const auto registers = [&](const Interrupt& interrupted) {
      const auto id = llm.register_chunk({.content = chunk_ids(0, 1500)}, interrupted);
      return id.ok() ? Status() : Status(id.error());
    };
    expect_one_stays(registers, registers, llm.llm(), interrupts_first);
    EXPECT_EQ(llm.list_chunks().value().size(), 1);
  }
}

// The first one's answer comes between the end of the prefill and the other's look at it.
TEST(ChunksThreads, WhoGivesUpAnEqualRegistrationAsItEndsTakesItFromNobody) {
  ChunkedLLM llm = open_slow();
  const ChunkContent chunk{.content = chunk_ids(0, 1500)};
  std::atomic<bool> both_wait = false;
  std::atomic<bool> gave_up = false;
  std::thread first([&] {
    const auto id = llm.register_chunk(chunk, [&] {
      while (both_wait && stat(llm, "requests_running") > 0) {
        std::this_thread::yield();
      }
      return both_wait.load();
    });
    EXPECT_FALSE(id.ok());
    gave_up = true;
  });
  while (stat(llm, "requests_running") == 0) {
    std::this_thread::yield();
  }
  const auto id = llm.register_chunk(chunk, [&] {
    both_wait = true;
    while (!gave_up) {
      std::this_thread::yield();
    }
    return false;
  });
  first.join();
  ASSERT_TRUE(id.ok()) << id.error().message;
  EXPECT_EQ(llm.get_chunk(*id).value().num_variants, 1);
  EXPECT_EQ(llm.list_chunks().value().size(), 1);
}

TEST(ChunksThreads, WhoGivesUpAnEqualCompositionTakesItFromNobody) {
  for (const bool interrupts_first : {false, true}) {
    ChunkedLLM llm = open_slow();
    CompositionSpec spec{.mode = ReuseMode::kIndependent};
    spec.system_chunk_id =
        llm.register_chunk({.content = chunk_ids(0, 5), .type = ChunkType::kSystemPrompt}).value();
    spec.context_chunk_ids = {llm.register_chunk({.content = chunk_ids(1, 1500)}).value()};
    spec.query_chunk_id =
        llm.register_chunk({.content = chunk_ids(2, 5), .type = ChunkType::kQuery}).value();
    const auto generates = [&](const Interrupt& interrupted) {
      const auto output = llm.generate_from_chunks(spec, {.max_tokens = 2}, interrupted);
      return output.ok() ? Status() : Status(output.error());
    };
    expect_one_stays(generates, generates, llm.llm(), interrupts_first);
  }
}

TEST(ChunksThreads, APrefillThatNobodyWaitsForEnds) {
  ChunkedLLM llm = open_slow();
  std::atomic<int> waiting = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      bool counted = false;
      const auto id = llm.register_chunk({.content = chunk_ids(0, 1500)}, [&] {
        waiting += std::exchange(counted, true) ? 0 : 1;
        return waiting == 2;
      });
      ASSERT_FALSE(id.ok());
      EXPECT_EQ(id.error().code, ErrorCode::kCancelled);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stat(llm, "requests_running"), 0);
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_TRUE(llm.list_chunks().value().empty());
}

// Waking the engine's thread takes longer than composing: who composes while it has nothing to do
// does so without it (docs/adr/0026).
TEST(ChunksThreads, WhoComposesWhileTheEngineHasNothingToDoDoesNotSleep) {
  ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 1})).value();
  const CompositionSpec spec = register_some(llm, 0).value();
  const auto sleeps = [&](int times) {
    rusage before{};
    rusage after{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &before), 0);
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(llm.compose(spec).ok());
    }
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &after), 0);
    return after.ru_nvcsw - before.ru_nvcsw;
  };
  for (int i = 0; i < 1000 && sleeps(1) > 0; ++i) {  // until it has fallen asleep
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(sleeps(100), 5);  // 100 before; the C library may sleep now and then
}

// Callers who do their letters themselves, others whose requests keep the engine busy, and one who
// closes it: every call is answered.
TEST(ChunksThreads, CallersTakeTurnsWithTheEngineUntilItIsClosed) {
  for (int turn = 0; turn < 5; ++turn) {
    ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 1})).value();
    const CompositionSpec spec = register_some(llm, 0).value();
    std::atomic<int> composed = 0;
    std::atomic<int> generated = 0;
    const auto until_closed = [&](const std::function<Status()>& call, std::atomic<int>& served) {
      Status status = call();
      for (; status.ok(); status = call()) {
        ++served;
      }
      EXPECT_EQ(status.error().code, ErrorCode::kClosed) << status.error().message;
    };
    const auto status_of = [](const auto& result) {
      return result.ok() ? Status() : Status(result.error());
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back(
          [&] { until_closed([&] { return status_of(llm.compose(spec)); }, composed); });
    }
    threads.emplace_back([&] {
      until_closed([&] { return status_of(llm.generate_from_chunks(spec, {.max_tokens = 2})); },
                   generated);
    });
    while (composed < 200 || generated < 3) {
      std::this_thread::yield();
    }
    llm.llm().close();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

}  // namespace
}  // namespace quire
