#include "quire/diagnostics/bench_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/diagnostics.h"
#include "quire/diagnostics/bench_floors.h"
#include "quire/diagnostics/bench_state.h"
#include "quire/diagnostics/peaks.h"
#include "quire/diagnostics/warmed.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/tensor/kv_format.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::diagnostics {
namespace {

constexpr std::uint32_t kPromptSeed = 20240601;

// Distinct ids each time, so that nothing but what is meant is found in the cache.
class PromptSource {
 public:
  explicit PromptSource(std::int32_t vocab_size) : ids_(0, vocab_size - 1) {}
  std::vector<TokenId> take(std::int32_t count) {
    std::vector<TokenId> ids(static_cast<std::size_t>(count));
    std::generate(ids.begin(), ids.end(), [this] { return ids_(random_); });
    return ids;
  }

 private:
  std::mt19937 random_{kPromptSeed};
  std::uniform_int_distribution<TokenId> ids_;
};

std::vector<TokenId> join(std::vector<TokenId> first, const std::vector<TokenId>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const model::Decoder& decoder_of(const engine::Engine& engine) {
  return *engine.bundle().decoder;  // NOLINT(bugprone-unchecked-optional-access): is set up
}

class Bench {
 public:
  Bench(runtime::Runtime& runtime, const BenchOptions& options,
        const std::optional<kernels::DeviceCeilings>& device)
      : runtime_(runtime),
        engine_(runtime.engine()),
        options_(options),
        pool_(engine_.context().pool->threads()),
        peaks_({.table = engine_.context().table, .pool = &pool_}, device),
        floors_(peaks_, decoder_of(engine_),
                engine_.model_config().kv_geometry(engine_.bundle().kv_dtype, 1,
                                                   engine_.bundle().kv_format)),
        prompts_(engine_.model_config().vocab_size),
        format_(decoder_of(engine_).pack_report().main_format) {}

  // Measures the work of `prompt` new tokens after `depth` cached ones.
  [[nodiscard]] Status prefill(std::int32_t prompt, std::int32_t depth);
  [[nodiscard]] Status decode(std::int32_t depth);
  // Measures `batch` requests behind `own` cached tokens each, or behind the shared ones.
  [[nodiscard]] Status batched_decode(std::int32_t batch, std::int32_t own);
  // Measures restore, fork and compose of `depth` cached tokens; nothing for less than a block. A
  // sliding window forgets what a file or a chunk would hold: of such a model it measures fork
  // alone.
  [[nodiscard]] Status state(std::int32_t depth);
  // Sets the floors of all records again, by the best peaks of the whole run.
  void settle_floors();

  std::vector<BenchRecord> records;

 private:
  [[nodiscard]] Result<std::vector<GenerationOutput>> generate(
      std::vector<std::vector<TokenId>> prompts, std::int32_t max_tokens);
  [[nodiscard]] Result<std::vector<TokenId>> cached_prefix(std::int32_t depth,
                                                           std::int32_t index = 0);
  struct BatchTimes {
    double step = 0;
    double overhead = 0;
  };
  [[nodiscard]] Result<BatchTimes> run_batch(const std::vector<std::vector<TokenId>>& contexts);
  void add(BenchRecord record, const StepWork& work, double tokens);
  void set_floor(BenchRecord& record, const StepWork& work);
  void add_plain(BenchRecord record);

  runtime::Runtime& runtime_;
  engine::Engine& engine_;
  const BenchOptions& options_;
  device::ThreadPool pool_;  // threads for the peaks; the engine's own are idle meanwhile
  Peaks peaks_;
  BenchFloors floors_;
  std::vector<std::pair<std::size_t, StepWork>> works_;  // work of records
  PromptSource prompts_;
  kernels::WeightFormat format_;
  // (depth, index) -> cached ids
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<TokenId>> prefixes_;
};

Result<std::vector<GenerationOutput>> Bench::generate(std::vector<std::vector<TokenId>> prompts,
                                                      std::int32_t max_tokens) {
  std::vector<engine::NewRequest> requests;
  requests.reserve(prompts.size());
  for (auto& prompt : prompts) {
    requests.push_back(
        {.prompt = std::move(prompt),
         .params = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true}});
  }
  QUIRE_TRY(const auto channels, engine_.submit(std::move(requests)));
  std::vector<GenerationOutput> outputs;
  for (const auto& channel : channels) {
    QUIRE_TRY(auto output, channel->take_generation());
    outputs.push_back(std::move(output));
  }
  return outputs;
}

// Returns `depth` ids whose KV is in the cache, whole blocks. Another index has other ids.
Result<std::vector<TokenId>> Bench::cached_prefix(std::int32_t depth, std::int32_t index) {
  const std::int32_t block = options_.llm.block_tokens;
  const std::int32_t whole = depth / block * block;
  const auto known = prefixes_.find({whole, index});
  if (whole == 0 || known != prefixes_.end()) {
    return whole == 0 ? std::vector<TokenId>() : known->second;
  }
  auto ids = prompts_.take(whole);
  QUIRE_TRY(const auto outputs, generate({ids}, 0));
  prefixes_[{whole, index}] = ids;
  return ids;
}

void Bench::add_plain(BenchRecord record) {
  record.weights = kernels::format_name(format_);
  record.kv = tensor::kv_format_name(engine_.bundle().kv_format, engine_.bundle().kv_dtype);
  record.device = options_.llm.device;
  record.threads = pool_.threads();
  records.push_back(std::move(record));
}

void Bench::add(BenchRecord record, const StepWork& work, double tokens) {
  record.tokens_per_second = tokens / record.seconds;
  record.bytes_per_second = floors_.bytes(work) / record.seconds;
  set_floor(record, work);  // peaks in the same minute
  record.linear_seconds = floors_.linear_seconds(work);
  works_.emplace_back(records.size(), work);
  add_plain(std::move(record));
}

void Bench::set_floor(BenchRecord& record, const StepWork& work) {
  record.floor_seconds = floors_.floor_seconds(work);
  record.of_floor = record.floor_seconds / record.seconds;
}

void Bench::settle_floors() {
  for (const auto& [index, work] : works_) {
    set_floor(records[index], work);
  }
}

Status Bench::prefill(std::int32_t prompt, std::int32_t depth) {
  struct Times {
    double whole = 0;
    double first = 0;
  };
  QUIRE_TRY(const auto prefix, cached_prefix(depth));
  QUIRE_TRY(const auto times, warmed(options_.repeat, [&]() -> Result<Times> {
              QUIRE_TRY(const auto computed, generate({join(prefix, prompts_.take(prompt))}, 0));
              QUIRE_TRY(const auto sampled, generate({join(prefix, prompts_.take(prompt))}, 1));
              return Times{.whole = computed[0].timing.total_seconds,
                           .first = sampled[0].timing.first_token_seconds};
            }));
  StepWork work{.rows = static_cast<double>(prompt),
                .own_tokens = static_cast<double>(prefix.size())};
  BenchRecord record{.metric = "prefill",
                     .prompt_tokens = prompt,
                     .depth_tokens = std::ssize(prefix),
                     .seconds = median(times, &Times::whole)};
  add(record, work, prompt);
  work.logit_rows = 1;
  record.metric = "ttft";
  record.seconds = median(times, &Times::first);
  add(record, work, prompt);
  return {};
}

Status Bench::decode(std::int32_t depth) {
  QUIRE_TRY(const auto prefix, cached_prefix(depth));
  const std::int32_t steps = options_.generate;
  QUIRE_TRY(const auto per_token, warmed(options_.repeat, [&]() -> Result<double> {
              QUIRE_TRY(const auto outputs, generate({join(prefix, prompts_.take(1))}, steps + 1));
              const Timing& timing = outputs[0].timing;
              return (timing.total_seconds - timing.first_token_seconds) / steps;
            }));
  add({.metric = "decode", .depth_tokens = std::ssize(prefix), .seconds = median(per_token)},
      {.own_tokens = static_cast<double>(prefix.size()) + steps / 2.0, .logit_rows = 1}, 1);
  return {};
}

// Measures one run of `contexts.size()` requests at a time.
Result<Bench::BatchTimes> Bench::run_batch(const std::vector<std::vector<TokenId>>& contexts) {
  const std::int32_t steps = options_.generate;
  std::vector<std::vector<TokenId>> prompts;
  prompts.reserve(contexts.size());
  for (const std::vector<TokenId>& context : contexts) {
    prompts.push_back(join(context, prompts_.take(1)));
  }
  QUIRE_TRY(const engine::EngineStats before, engine_.stats());
  QUIRE_TRY(const auto outputs, generate(std::move(prompts), steps + 1));
  QUIRE_TRY(const engine::EngineStats after, engine_.stats());
  double first = 0;
  double total = 0;
  for (const GenerationOutput& output : outputs) {
    first = std::max(first, output.timing.first_token_seconds);
    total = std::max(total, output.timing.total_seconds);
  }
  return BatchTimes{.step = (total - first) / steps,
                    .overhead = (after.overhead_seconds() - before.overhead_seconds()) /
                                static_cast<double>(after.steps - before.steps)};
}

Status Bench::batched_decode(std::int32_t batch, std::int32_t own) {
  QUIRE_TRY(const auto shared, cached_prefix(options_.shared_prefix));
  std::vector<std::vector<TokenId>> contexts;
  for (std::int32_t b = 0; b < batch; ++b) {
    QUIRE_TRY(const auto context, cached_prefix(own, b));
    contexts.push_back(join(shared, context));
  }
  QUIRE_TRY(const auto times, warmed(options_.repeat, [&] { return run_batch(contexts); }));
  const std::int64_t shared_tokens = std::ssize(shared);
  const std::int64_t own_tokens = std::ssize(contexts.front()) - shared_tokens;
  add({.metric = "batched_decode",
       .depth_tokens = own_tokens,
       .batch = batch,
       .shared_tokens = shared_tokens,
       .seconds = median(times, &BatchTimes::step),
       .overhead_seconds = median(times, &BatchTimes::overhead)},
      {.sequences = static_cast<double>(batch),
       .own_tokens = static_cast<double>(own_tokens) + options_.generate / 2.0,
       .shared_tokens = static_cast<double>(shared_tokens),
       .logit_rows = static_cast<double>(batch)},
      batch);
  return {};
}

Status Bench::state(std::int32_t depth) {
  QUIRE_TRY(const auto prefix, cached_prefix(depth));
  if (prefix.empty()) {
    return {};
  }
  const bool windowed = has_window(engine_.model_config());
  if (!windowed) {
    const auto tokens = static_cast<double>(prefix.size());
    QUIRE_TRY(const RestoreTimes restore, time_restore(runtime_, prefix, peaks_));
    add_plain({.metric = "restore",
               .depth_tokens = std::ssize(prefix),
               .seconds = restore.seconds,
               .bytes_per_second = floors_.kv_bytes(tokens) / restore.seconds,
               .floor_seconds = restore.path_seconds,
               .of_floor = restore.path_seconds / restore.seconds});
  }
  QUIRE_TRY(const double fork, time_fork(runtime_, prefix));
  add_plain({.metric = "fork", .depth_tokens = std::ssize(prefix), .seconds = fork});
  // A GPU composes no chunks on states.
  if (windowed || (engine_.accelerator() != nullptr && runtime_.chunks().core().has_states())) {
    return {};
  }
  const auto take = [this](std::int32_t count) { return prompts_.take(count); };
  QUIRE_TRY(const double compose, time_compose(runtime_, depth, take));
  add_plain({.metric = "compose", .depth_tokens = std::ssize(prefix), .seconds = compose});
  return {};
}

using Say = std::function<void(const std::string&)>;

Status measure_at(std::int32_t depth, std::span<const std::int32_t> prompts, Bench& bench,
                  const Say& say) {
  for (const std::int32_t prompt : prompts) {
    say(base::str_cat("prefill of ", prompt, " tokens at depth ", depth));
    QUIRE_TRY_STATUS(bench.prefill(prompt, depth));
  }
  say(base::str_cat("decode at depth ", depth));
  QUIRE_TRY_STATUS(bench.decode(depth));
  say(base::str_cat("restore, fork, compose of ", depth, " tokens"));
  return bench.state(depth);
}

Status measure_batch(std::int32_t batch, const BenchOptions& options, Bench& bench,
                     const Say& say) {
  const std::vector<std::int32_t> own_depths =
      options.shared_prefix > 0 ? std::vector<std::int32_t>{0} : options.depth;
  for (const std::int32_t own : own_depths) {
    say(base::str_cat("decode of ", batch, " sequences behind ", options.shared_prefix,
                      " shared and ", own, " tokens of their own"));
    QUIRE_TRY_STATUS(bench.batched_decode(batch, own));
  }
  return {};
}

}  // namespace

bool has_window(const model::ModelConfig& config) {
  return std::ranges::any_of(config.window_tokens, [](std::int32_t window) { return window > 0; });
}

Result<std::vector<BenchRecord>> measure(runtime::Runtime& runtime, const BenchOptions& options,
                                         const Say& say) {
  std::optional<kernels::DeviceCeilings> device;
  if (device::Accelerator* accelerator = runtime.engine().accelerator(); accelerator != nullptr) {
    say("measuring the device's peaks");
    QUIRE_TRY(device, kernels::measure_device_ceilings(*accelerator));
  }
  Bench bench(runtime, options, device);
  for (const std::int32_t depth : options.depth) {
    QUIRE_TRY_STATUS(measure_at(depth, options.prompt, bench, say));
  }
  for (const std::int32_t batch : options.batch) {
    QUIRE_TRY_STATUS(measure_batch(batch, options, bench, say));
  }
  bench.settle_floors();
  return std::move(bench.records);
}

}  // namespace quire::diagnostics
