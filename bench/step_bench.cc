// Measures what the engine itself takes of a decode step beside the model, by part. Measures the
// share of steps launched while the one before still ran, so that most of that work overlaps.
//
//   step_bench [MODEL [CONTEXT [DEVICE [KV_DTYPE]]]]
//   default: preset:smollm2-135m, 64 tokens of context, cpu, auto
//
// Then says what it costs that chunks may have formats of their own where none has: pools with and
// without these formats decode in turns.
//
// Bar: 60 us a step of 64 requests outside of kernels and the choice of tokens.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "must.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/runtime/runtime.h"
#include "quire/types.h"

namespace {

using quire::must;
using quire::TokenId;
using quire::engine::Engine;
using quire::engine::EngineStats;
using quire::runtime::Runtime;

constexpr std::int32_t kSteps = 64;  // of a round
constexpr int kRounds = 5;

std::vector<TokenId> prompt_of(std::int32_t tokens, std::int32_t request, std::int32_t vocab) {
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(tokens));
  for (std::int32_t i = 0; i < tokens; ++i) {
    ids.push_back((i * 7919 + request * 104729) % vocab);
  }
  return ids;
}

// Stats after the first step from `step` on.
EngineStats stats_from(Engine& engine, std::int64_t step) {
  for (;;) {
    EngineStats stats = must(engine.stats());
    if (stats.steps >= step) {
      return stats;
    }
    if (stats.requests_running == 0) {
      std::fprintf(stderr, "error: the model's context is too short\n");
      std::exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Microseconds a step, and a share.
struct Parts {
  double schedule = 0, build = 0, plan = 0, settle = 0, deliver = 0, all = 0, sample = 0, step = 0;
  double ahead = 0;
};

Parts between(const EngineStats& before, const EngineStats& after) {
  const auto per_step = [&](double EngineStats::* part) {
    return (after.*part - before.*part) * 1e6 / static_cast<double>(after.steps - before.steps);
  };
  return {.schedule = per_step(&EngineStats::schedule_seconds),
          .build = per_step(&EngineStats::build_seconds),
          .plan = per_step(&EngineStats::forward_host_seconds),
          .settle = per_step(&EngineStats::settle_seconds),
          .deliver = per_step(&EngineStats::deliver_seconds),
          .all = (after.overhead_seconds() - before.overhead_seconds()) * 1e6 /
                 static_cast<double>(after.steps - before.steps),
          .sample = per_step(&EngineStats::sample_seconds),
          .step = per_step(&EngineStats::step_seconds),
          .ahead = static_cast<double>(after.steps_ahead - before.steps_ahead) /
                   static_cast<double>(after.steps - before.steps)};
}

// The round that is the median by what the engine takes.
Parts measure(Engine& engine, std::int32_t batch, std::int32_t context) {
  std::vector<quire::engine::NewRequest> requests;
  requests.reserve(static_cast<std::size_t>(batch));
  for (std::int32_t i = 0; i < batch; ++i) {
    requests.push_back(
        {.prompt = prompt_of(context, i, engine.model_config().vocab_size),
         .params = {.temperature = 0, .max_tokens = kSteps * (kRounds + 20), .ignore_eos = true}});
  }
  const auto channels = must(engine.submit(std::move(requests)));
  EngineStats before = must(engine.stats());
  while (before.requests_running < batch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    before = must(engine.stats());
  }
  before = stats_from(engine, before.steps + kSteps);
  std::vector<Parts> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const EngineStats after = stats_from(engine, before.steps + kSteps);
    rounds.push_back(between(before, after));
    before = after;
  }
  for (const auto& channel : channels) {
    must(engine.abort(channel->id()));
  }
  std::ranges::sort(rounds, {}, &Parts::all);
  return rounds[kRounds / 2];
}

// Prints medians of pools of one format and of pools that could mix, and what a step costs more.
void compare_formats(const std::string& model, std::int32_t context,
                     const quire::engine::EngineOptions& options) {
  constexpr int kTurns = 7;
  quire::engine::EngineOptions alone = options;
  alone.mixes_formats = false;
  const auto one = must(Runtime::start(model, alone));
  const auto mixed = must(Runtime::start(model, options));
  std::printf("%d and %d formats, medians of %d turns\n", +one->engine().core().num_formats(),
              +mixed->engine().core().num_formats(), kTurns);
  std::printf("%6s %12s %12s %12s %12s %12s\n", "batch", "step", "step, mixed", "engine",
              "engine, mixed", "more, %");
  for (const std::int32_t batch : {1, 8, 64}) {
    std::vector<double> step[2], all[2];
    for (int turn = 0; turn < 2 * kTurns; ++turn) {
      const int side = (turn + turn / 2) % 2;  // 0 1 1 0 0 1 1 0
      const Parts parts = measure((side == 0 ? one : mixed)->engine(), batch, context);
      step[side].push_back(parts.step);
      all[side].push_back(parts.all);
    }
    for (auto* const values : {&step[0], &step[1], &all[0], &all[1]}) {
      std::ranges::sort(*values);
    }
    const auto median = [](const std::vector<double>& values) { return values[values.size() / 2]; };
    std::printf("%6d %12.1f %12.1f %12.1f %12.1f %12.2f\n", batch, median(step[0]), median(step[1]),
                median(all[0]), median(all[1]),
                100 * (median(all[1]) - median(all[0])) / median(step[0]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "preset:smollm2-135m";
  const auto context = static_cast<std::int32_t>(argc > 2 ? std::atoi(argv[2]) : 64);
  const std::string device = argc > 3 ? argv[3] : "cpu";
  quire::engine::EngineOptions options{.device = device, .threads = 2};
  options.model.kv_dtype = argc > 4 ? argv[4] : "auto";
  auto runtime = must(Runtime::start(model, options));
  std::printf("us a step, %d tokens of context, %s\n", context, device.c_str());
  std::printf("%6s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "batch", "schedule", "build", "plan",
              "settle", "deliver", "all", "sample", "step", "ahead");
  bool fast = true;
  for (const std::int32_t batch : {1, 8, 32, 64, 128}) {
    const Parts parts = measure(runtime->engine(), batch, context);
    std::printf("%6d %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.2f\n", batch,
                parts.schedule, parts.build, parts.plan, parts.settle, parts.deliver, parts.all,
                parts.sample, parts.step, parts.ahead);
    fast = fast && (batch != 64 || parts.all <= 60);
  }
  runtime.reset();
  compare_formats(model, context, options);
  return fast ? 0 : 1;
}
