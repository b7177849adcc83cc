// Bench computes every shape before it times it, and restore is measured against the way of its
// bytes.
#include "quire/diagnostics/bench_runs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "quire/base/temporary_folder.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/diagnostics.h"
#include "quire/diagnostics/bench_state.h"
#include "quire/diagnostics/peaks.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/kernel_context.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/types.h"

namespace quire::diagnostics {
namespace {

std::shared_ptr<runtime::Runtime> start() {
  return runtime::Runtime::start(QUIRE_SOURCE_DIR "/models/cardfile/model", {}).value();
}

engine::EngineStats stats_of(runtime::Runtime& runtime) { return runtime.engine().stats().value(); }

struct Counts {
  std::int64_t steps = 0;
  std::int64_t rows = 0;
};

Counts counts_of(const BenchOptions& options) {
  const auto runtime = start();
  const engine::EngineStats before = stats_of(*runtime);
  EXPECT_TRUE(measure(*runtime, options, [](const std::string&) {}).ok());
  const engine::EngineStats after = stats_of(*runtime);
  return {.steps = after.steps - before.steps,
          .rows = after.tokens_computed - before.tokens_computed};
}

// Oracle: the steps of one run, by hand. `decode` steps through the prompt of one token and 3 more,
// `prefill` and `ttft` through 32 tokens each.
TEST(BenchRuns, EachShapeIsComputedOnceMoreThanItIsTimed) {
  const Counts counts = counts_of({.prompt = {32}, .depth = {0}, .generate = 3, .repeat = 2});
  EXPECT_EQ(counts.steps, 3 * (2 + 4));
  EXPECT_EQ(counts.rows, 3 * (2 * 32 + 4));
}

TEST(BenchRuns, EachBatchIsComputedOnceMoreThanItIsTimed) {
  const auto with = [](const std::vector<std::int32_t>& batch) {
    return counts_of({.prompt = {}, .depth = {0}, .generate = 3, .batch = batch, .repeat = 2});
  };
  EXPECT_EQ(with({2}).rows - with({}).rows, 3 * 2 * 4);
}

kernels::KernelContext context_with(device::ThreadPool& pool) {
  return {.table = &kernels::kernels_for(device::best_isa()), .pool = &pool};
}

// Oracle: the size of the file, at a link of one byte a second.
TEST(BenchRuns, TheFloorOfRestoreOnADeviceIsItsLinkToTheHost) {
  const auto runtime = start();
  device::ThreadPool pool(2);
  const Peaks peaks(context_with(pool), kernels::DeviceCeilings{.read_bytes_per_second = 1e12,
                                                                .flops_per_second = 1e12,
                                                                .to_device_bytes_per_second = 1});
  const std::vector<TokenId> ids(64, 5);
  const double kv_bytes =
      64.0 * static_cast<double>(stats_of(*runtime).block_bytes) / BenchOptions{}.llm.block_tokens;
  const double seconds = time_restore(*runtime, ids, peaks).value().path_seconds;
  EXPECT_GE(seconds, kv_bytes);
  EXPECT_LT(seconds, kv_bytes + (64 << 10));  // and the header
}

// KV of such a model does not stand apart from its states, so that a plain sequence is saved.
TEST(BenchRuns, AModelWithStatesHasAllMetricsBehindADepth) {
  const auto runtime =
      runtime::Runtime::start(QUIRE_SOURCE_DIR "/tests/golden/model/qwen3_5", {}).value();
  const auto records =
      measure(*runtime, {.prompt = {8}, .depth = {32}, .generate = 2, .batch = {1}},
              [](const std::string&) {});
  ASSERT_TRUE(records.ok()) << records.error().message;
  std::vector<std::string> metrics;
  for (const BenchRecord& record : *records) {
    metrics.push_back(record.metric);
    EXPECT_GT(record.seconds, 0) << record.metric;
  }
  EXPECT_EQ(metrics, (std::vector<std::string>{"prefill", "ttft", "decode", "restore", "fork",
                                               "compose", "batched_decode"}));
}

// The oracle is the device's own figures: fp8 weights multiply as e4m3 where it can.
TEST(BenchRuns, ProductsOf8BitFloatsHaveACeilingOfTheirOwnOnADevice) {
  device::ThreadPool pool(1);
  using kernels::WeightFormat;
  Peaks hopper(context_with(pool),
               kernels::DeviceCeilings{.flops_per_second = 7e14, .e4m3_flops_per_second = 1.4e15});
  EXPECT_EQ(hopper.flops(WeightFormat::kF8, 64), 1.4e15);
  EXPECT_EQ(hopper.flops(WeightFormat::kBf16, 64), 7e14);
  EXPECT_EQ(hopper.flops(WeightFormat::kQ4g32, 64), 7e14) << "codes are widened first";
  Peaks older(context_with(pool), kernels::DeviceCeilings{.flops_per_second = 3e14});
  EXPECT_EQ(older.flops(WeightFormat::kF8, 64), 3e14);
}

TEST(BenchRuns, TheWayOfAFileIsItsReadOnTheCpuAndTheSlowerPartOnADevice) {
  const base::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "bytes";
  std::ofstream(file) << std::string(3 << 20, 'x');
  device::ThreadPool pool(2);
  const double read = Peaks(context_with(pool)).path_seconds(file).value();
  EXPECT_GT(read, 0);
  const auto over_link = [&](double rate) {
    return Peaks(context_with(pool), kernels::DeviceCeilings{.to_device_bytes_per_second = rate})
        .path_seconds(file)
        .value();
  };
  EXPECT_EQ(over_link(1), 3 << 20);
  EXPECT_GT(over_link(1e30), 0);  // the read
  EXPECT_EQ(Peaks(context_with(pool)).path_seconds(folder.path() / "none").error().code,
            ErrorCode::kIo);
}

}  // namespace
}  // namespace quire::diagnostics
