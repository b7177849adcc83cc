// A whole step of the engine, from the scheduler's plan to the delivered token, allocates nothing
// and asks nothing of the kernel while requests decode, when blocks fill up too. The cost of a
// caller that sleeps is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "counted.h"
#include "quire/base/ids.h"
#include "quire/base/sanitized.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/runtime/runtime.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

using quire::testing::Uncounted;

const std::filesystem::path kFolder = QUIRE_SOURCE_DIR "/models/cardfile/draft";
constexpr std::int32_t kPromptTokens = 20;
constexpr std::int32_t kBlockTokens = 32;
// Steps after which the first requests end: the engine has warmed up; two more; the last one, while
// contexts are still of one piece of attention, whose number buffers grow with.
constexpr std::int32_t kEnds[] = {60, 100, 130, 220};
constexpr std::int32_t kFewSteps = kEnds[2] - kEnds[1], kManySteps = kEnds[3] - kEnds[2];
constexpr std::int32_t kOthersEnd = 400;

// Counts of allocations, of calls that the kernel refused, and of wakes so far.
struct Asked {
  std::int64_t allocations = 0, refused = 0, wakes = 0;
  friend Asked operator-(Asked a, Asked b) {
    return {a.allocations - b.allocations, a.refused - b.refused, a.wakes - b.wakes};
  }
};

struct Marks {
  std::vector<Asked> asked;  // [ends]
  std::atomic<bool> all = false;
  bool holds = false;  // at the last of them: what follows asks for memory that is refused
};

// Sees the end of a request on the engine's thread. Between the ends of two requests lie the
// steps, and the ending of the first.
class Mark final : public RequestObserver {
 public:
  Mark(Marks& marks, bool refuses) : marks_(marks), refuses_(refuses) {}
  void computed(SeqId /*sequence*/) override {
    if (refuses_ && !quire::testing::refuse_system_calls(quire::testing::Threads::kThisOne)) {
      std::_Exit(2);
    }
    using namespace quire::testing;
    marks_.asked.push_back({num_allocations(), num_refused() + num_waits(), num_wakes()});
    marks_.all = marks_.asked.size() == std::size(kEnds);
    if (marks_.all) {
      marks_.all.notify_one();
    }
    while (marks_.all && marks_.holds) {
    }
  }

 private:
  Marks& marks_;
  bool refuses_;
};

struct Case {
  std::int32_t batch = 1;  // of the steps before the last end
  bool streaming = false;
  int threads = 1;
  bool refuses_system_calls = false;
  bool reads = false;  // a caller waits for the deltas of the request that ends last
};

// Takes deltas as they come, to the end.
void read_all(Channel& channel) {
  const Uncounted mine;
  while (channel.next().value()) {
  }
}

struct Steps {
  Asked few, many;  // of kFewSteps and an ending, of kManySteps and an ending
};

// Prints the counts. Returns whether the kernel was asked for nothing but, for a delta, two wakes.
// The reader waits for the delta, and then for its lock.
bool report(const Case& wanted, const Steps& steps) {
  std::fprintf(stderr, "%d requests: %ld and %ld calls, %ld and %ld wakes\n", wanted.batch,
               static_cast<long>(steps.few.refused), static_cast<long>(steps.many.refused),
               static_cast<long>(steps.few.wakes), static_cast<long>(steps.many.wakes));
  if (wanted.reads) {
    return steps.many.wakes > 0 && steps.many.wakes <= 2 * kManySteps;
  }
  return steps.few.refused + steps.many.refused + steps.few.wakes + steps.many.wakes == 0;
}

Steps run(const Case& wanted) {
  const Uncounted mine;
  EngineOptions options;
  options.block_tokens = kBlockTokens;
  options.threads = wanted.threads;
  const auto runtime = runtime::Runtime::start(kFolder, options).value();
  Engine* const engine = &runtime->engine();
  Marks marks;
  marks.holds = wanted.refuses_system_calls;
  marks.asked.reserve(std::size(kEnds));
  std::vector<NewRequest> requests;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(std::size(kEnds)) + wanted.batch - 1;
       ++i) {
    const bool marks_end = i < static_cast<std::int32_t>(std::size(kEnds));
    std::vector<TokenId> prompt;
    for (std::int32_t token = 0; token < kPromptTokens; ++token) {
      prompt.push_back(300 + (token * 7 + i * 31) % 1000);
    }
    requests.push_back({.prompt = std::move(prompt),
                        .params = {.temperature = 0,
                                   .max_tokens = marks_end ? kEnds[i] : kOthersEnd,
                                   .ignore_eos = true},
                        .streaming = wanted.streaming});
    if (marks_end) {
      requests.back().observer =
          std::make_shared<Mark>(marks, wanted.refuses_system_calls && i == 0);
    }
  }
  const auto channels = engine->submit(std::move(requests)).value();
  std::thread reader;
  if (wanted.reads) {
    reader = std::thread([&] { read_all(*channels[std::size(kEnds) - 1]); });
  }
  marks.all.wait(false);
  const Steps steps{marks.asked[2] - marks.asked[1], marks.asked[3] - marks.asked[2]};
  if (wanted.refuses_system_calls) {  // the engine's thread cannot end
    std::_Exit(report(wanted, steps) ? 0 : 1);
  }
  engine->close();
  if (reader.joinable()) {
    reader.join();
  }
  return steps;
}

class StepAllocations : public ::testing::TestWithParam<Case> {};

TEST_P(StepAllocations, StepsOfADecodingEngineAllocateNothing) {
  const Steps steps = run(GetParam());
  EXPECT_GT(steps.few.allocations, 0) << "the ending of a request allocates: is it counted?";
  EXPECT_EQ(steps.few.allocations, steps.many.allocations) << "more steps allocate";
}

INSTANTIATE_TEST_SUITE_P(
    Batches, StepAllocations,
    ::testing::Values(Case{.batch = 1, .threads = 2}, Case{.batch = 64, .threads = 2},
                      Case{.batch = 1, .streaming = true, .threads = 2},
                      Case{.batch = 64, .streaming = true, .threads = 2},
                      Case{.batch = 64, .streaming = true, .threads = 2, .reads = true}));

// On one thread: others sleep in the kernel when they have nothing to do for long.
class StepSystemCalls : public ::testing::TestWithParam<Case> {};

TEST_P(StepSystemCalls, StepsOfADecodingEngineAskTheKernelToWakeSleepersAtMost) {
  if (base::kSanitized) {
    GTEST_SKIP() << "a sanitizer asks the kernel for memory of its own";
  }
  EXPECT_EXIT((void)run(GetParam()), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(
    Batches, StepSystemCalls,
    ::testing::Values(
        Case{.batch = 1, .refuses_system_calls = true},
        Case{.batch = 64, .refuses_system_calls = true},
        Case{.batch = 1, .streaming = true, .refuses_system_calls = true},
        Case{.batch = 64, .streaming = true, .refuses_system_calls = true},
        Case{.batch = 64, .streaming = true, .refuses_system_calls = true, .reads = true}));

}  // namespace
}  // namespace quire::engine
