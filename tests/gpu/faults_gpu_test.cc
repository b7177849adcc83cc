// Tests failures on a GPU: memory that is not there, work that the driver refuses, a device that is
// lost. Each is a typed error, or goes unnoticed; the engine goes on with the right tokens, and
// nothing is left behind.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/context.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/device_context.h"
#include "quire/device/memory_pool.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cuda/choose.h"
#include "quire/kernels/kernel_context.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "refused_work.h"

namespace quire {
namespace {

using device::MemoryPool;
using device::cuda::DeviceContext;

constexpr std::int64_t kUncounted = std::int64_t{1} << 40;

class Faults : public testing::Test {
 protected:
  static LLM open() {
    return LLM::open(kModel, here({.threads = 2, .prefix_cache = false})).value();
  }
  static DeviceContext& device_of(const LLM& llm) {
    return llm.impl().open_engine().value()->accelerator()->context();
  }
  Result<Ids> answer(LLM& llm) const {
    auto output = llm.generate(prompt_, params_);
    return output.ok() ? Result<Ids>(output->token_ids) : output.error();
  }
  Ids right_answer() const {
    LLM llm = open();
    return answer(llm).value();
  }
  // Fails each allocation of the pool during `call`, one after the other. Returns how many failed.
  static int fail_each_allocation(MemoryPool& pool, const std::function<Status()>& call) {
    EXPECT_TRUE(pool.shrink(0).ok());
    int failures = 0;
    for (std::int64_t allowed = pool.stats().driver_allocations; failures < 500; ++allowed) {
      pool.set_budget({.allocations = allowed});
      const Status status = call();
      if (status.ok()) {
        break;
      }
      EXPECT_EQ(status.error().code, ErrorCode::kOutOfBlocks) << status.error().message;
      EXPECT_GT(status.error().needed_bytes, 0) << status.error().message;
      ++failures;
    }
    pool.set_budget({});
    return failures;
  }

  const Ids prompt_ = some_ids(300, 5);
  const SamplingParams params_ = {.max_tokens = 6, .ignore_eos = true, .seed = 3, .logprobs = 2};
};

TEST_F(Faults, AnyAllocationOfAStepMayFail) {
  const Ids right = right_answer();
  for (const bool pinned : {false, true}) {
    LLM llm = open();
    MemoryPool& pool = pinned ? device_of(llm).pinned_pool() : device_of(llm).device_pool();
    Ids last;
    const int failures = fail_each_allocation(pool, [&]() -> Status {
      auto ids = answer(llm);
      EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
      if (!ids.ok()) {
        return ids.error();
      }
      last = std::move(ids).value();
      return {};
    });
    EXPECT_GE(failures, pinned ? 3 : 15);
    EXPECT_EQ(last, right);
    EXPECT_EQ(answer(llm).value(), right);
  }
}

TEST_F(Faults, AnyAllocationOfAnOpeningMayFail) {
  device::ThreadPool threads(2);
  const kernels::KernelContext context{.table = &kernels::kernels_for(device::best_isa()),
                                       .pool = &threads};
  const auto accelerator = device::Accelerator::open("cuda").value();
  std::optional<engine::ModelBundle> bundle;
  MemoryPool& pool = accelerator->context().device_pool();
  const int failures = fail_each_allocation(pool, [&]() -> Status {
    auto loaded = engine::open_model(
        context, kModel, {.dtype = "bfloat16", .placement = {.accelerator = accelerator.get()}});
    if (!loaded.ok()) {
      EXPECT_EQ(pool.stats().used_bytes, 0) << "memory is left behind";
      return loaded.error();
    }
    bundle.emplace(std::move(loaded).value());
    return {};
  });
  EXPECT_GE(failures, 50);
  bundle.reset();
  EXPECT_EQ(pool.stats().used_bytes, 0);
}

TEST_F(Faults, AnyAllocationOfMovedKvMayFail) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv", again = folder.path() / "again.qkv";
  LLM llm = open();
  Sequence sequence = llm.sequence(prompt_).value();
  ASSERT_TRUE(sequence.append(some_ids(1, 1)).ok());
  MemoryPool& pool = device_of(llm).device_pool();
  EXPECT_GE(fail_each_allocation(pool, [&] { return sequence.save(file); }), 1);
  for (const bool wait : {true, false}) {
    const auto load = [&]() -> Status {
      auto loaded = llm.load_sequence(file, {.wait = wait});
      return loaded.ok() ? loaded->save(again) : loaded.error();
    };
    EXPECT_GE(fail_each_allocation(pool, load), 1) << wait;
  }
  EXPECT_EQ(llm.load_sequence(again)->generate(params_)->token_ids,
            sequence.generate(params_)->token_ids);
}

TEST_F(Faults, KvMovesThroughPageableMemoryWhereNoneCanBePinned) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  LLM llm = open();
  ContextManager context = ContextManager::open(llm).value();
  Sequence sequence = llm.sequence(prompt_).value();
  const Ids want = sequence.fork()->generate(params_)->token_ids;
  MemoryPool& pool = device_of(llm).pinned_pool();
  ASSERT_TRUE(pool.shrink(0).ok());
  const std::int64_t pinned = pool.stats().driver_allocations;
  pool.set_budget({.allocations = pinned});
  const std::string card = context.add(prompt_).value();
  ASSERT_TRUE(context.unload(card).ok());
  ASSERT_TRUE(context.restore(card).ok());
  ASSERT_TRUE(sequence.save(file).ok());
  for (const bool wait : {true, false}) {
    EXPECT_EQ(llm.load_sequence(file, {.wait = wait})->generate(params_)->token_ids, want) << wait;
  }
  EXPECT_EQ(pool.stats().driver_allocations, pinned);
}

TEST_F(Faults, AnyWorkOfARequestMayBeRefused) {
  const Ids right = right_answer();
  LLM llm = open();
  int failures = 0;
  bool reached = true;
  for (std::int64_t number = 0; reached; number += 1 + number / 16) {
    (void)refuse_work(number);
    const auto ids = answer(llm);
    reached = refuse_work(-1) < 0;
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
    if (ids.ok()) {  // also where a step could not be recorded, or an algorithm not be tried
      EXPECT_EQ(ids.value(), right) << number;
    } else {
      ++failures;
      EXPECT_EQ(ids.error().code, ErrorCode::kDevice) << ids.error().message;
      EXPECT_EQ(answer(llm).value(), right) << number;
    }
  }
  EXPECT_GE(failures, 30);
}

TEST_F(Faults, AStepThatCannotBeRecordedStaysWithItsKernelsAndIsNotTriedAgain) {
  struct Steps {
    Ids ids;
    std::vector<std::int64_t> work;  // what each queues or waits for
  };
  // A token each; of step `index` the work with this number is refused.
  const auto run = [&](int index, std::int64_t refused) {
    LLM llm = open();
    Sequence sequence = llm.sequence(some_ids(40, 1)).value();
    Steps steps;
    for (int step = 0; step < 8; ++step) {
      const std::int64_t number = step == index ? refused : kUncounted;
      (void)refuse_work(number);
      const auto output = sequence.generate({.temperature = 0, .max_tokens = 1}).value();
      steps.ids = joined(std::move(steps.ids), output.token_ids);
      steps.work.push_back(number - refuse_work(-1));
    }
    return steps;
  };
  const Steps recorded = run(-1, 0);
  const std::int64_t by_graph = recorded.work.back();
  const auto longer = [&](std::int64_t work) { return work > 4 * by_graph; };
  std::size_t recording = 0;  // the last step that is not a graph alone
  for (std::size_t step = 0; step < recorded.work.size(); ++step) {
    recording = longer(recorded.work[step]) ? step : recording;
  }
  ASSERT_LE(recording, 4) << "steps are launched as graphs";
  const Steps refused = run(static_cast<int>(recording), recorded.work[recording] / 2);
  EXPECT_EQ(refused.ids, recorded.ids);
  for (std::size_t step = recording + 1; step < refused.work.size(); ++step) {
    EXPECT_TRUE(longer(refused.work[step])) << step << ": " << refused.work[step];
  }
}

// In a process of its own: nothing can be done on a GPU after that.
TEST_F(Faults, ALostDeviceIsAnErrorOfEveryRequestAndTheEngineCloses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lose_it = [&] {
    LLM llm = open();
    (void)kernels::cuda::change_logits({.count = 1}, device_of(llm).compute_stream().get());
    bool told = true;
    for (int i = 0; i < 2; ++i) {
      const auto ids = answer(llm);
      told = told && !ids.ok() && ids.error().code == ErrorCode::kDevice;
    }
    told = told && stat(llm, "blocks_in_use") == 0;
    llm.close();
    std::exit(told ? 0 : 1);
  };
  EXPECT_EXIT(lose_it(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace quire
