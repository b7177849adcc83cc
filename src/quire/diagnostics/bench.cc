// run_bench: the product measured by its own engine, each figure beside its floor.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/diagnostics.h"
#include "quire/diagnostics/bench_floors.h"
#include "quire/diagnostics/bench_state.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/llm_options.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/tensor/kv_format.h"
#include "quire/types.h"

namespace quire {
namespace {

using diagnostics::StepWork;
using engine::Engine;
using engine::EngineStats;
using engine::NewRequest;
using runtime::Runtime;

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

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

const model::Decoder& decoder_of(const engine::Engine& engine) {
  return *engine.bundle().decoder;  // NOLINT(bugprone-unchecked-optional-access): is set up
}

bool has_window(const model::ModelConfig& config) {
  return std::ranges::any_of(config.window_tokens, [](std::int32_t window) { return window > 0; });
}

class Bench {
 public:
  Bench(runtime::Runtime& runtime, const BenchOptions& options,
        const std::optional<kernels::DeviceCeilings>& device)
      : runtime_(runtime),
        engine_(runtime.engine()),
        options_(options),
        pool_(engine_.context().pool->threads()),
        floors_({.table = engine_.context().table, .pool = &pool_}, decoder_of(engine_),
                engine_.model_config().kv_geometry(engine_.bundle().kv_dtype, 1,
                                                   engine_.bundle().kv_format),
                device),
        prompts_(engine_.model_config().vocab_size),
        format_(decoder_of(engine_).pack_report().main_format) {}

  // Work of `prompt` new tokens after `depth` cached ones.
  [[nodiscard]] Status prefill(std::int32_t prompt, std::int32_t depth);
  [[nodiscard]] Status decode(std::int32_t depth);
  // Of `batch` requests behind `own` cached tokens each, or behind the shared ones.
  [[nodiscard]] Status batched_decode(std::int32_t batch, std::int32_t own);
  // restore, fork, compose of `depth` cached tokens; nothing for less than a block. A sliding
  // window forgets what a file or a chunk would hold: of such a model fork alone.
  [[nodiscard]] Status state(std::int32_t depth);

  std::vector<BenchRecord> records;

 private:
  [[nodiscard]] Result<std::vector<GenerationOutput>> generate(
      std::vector<std::vector<TokenId>> prompts, std::int32_t max_tokens);
  [[nodiscard]] Result<std::vector<TokenId>> cached_prefix(std::int32_t depth,
                                                           std::int32_t index = 0);
  void add(BenchRecord record, const StepWork& work, double tokens);
  void add_plain(BenchRecord record);

  runtime::Runtime& runtime_;
  engine::Engine& engine_;
  const BenchOptions& options_;
  device::ThreadPool pool_;  // of the ceilings; the engine's own is idle meanwhile
  diagnostics::BenchFloors floors_;
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

// `depth` ids whose KV is in the cache, whole blocks; those of another index are others.
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
  record.floor_seconds = floors_.floor_seconds(work);
  record.of_floor = record.floor_seconds / record.seconds;
  record.linear_seconds = floors_.linear_seconds(work);
  add_plain(std::move(record));
}

Status Bench::prefill(std::int32_t prompt, std::int32_t depth) {
  QUIRE_TRY(const auto prefix, cached_prefix(depth));
  std::vector<double> whole;
  std::vector<double> first;
  // Not counted: the first of its length writes to memory that nobody has touched yet.
  QUIRE_TRY(const auto warm, generate({join(prefix, prompts_.take(prompt))}, 1));
  for (std::int32_t i = 0; i < options_.repeat; ++i) {
    QUIRE_TRY(const auto computed, generate({join(prefix, prompts_.take(prompt))}, 0));
    QUIRE_TRY(const auto sampled, generate({join(prefix, prompts_.take(prompt))}, 1));
    whole.push_back(computed[0].timing.total_seconds);
    first.push_back(sampled[0].timing.first_token_seconds);
  }
  const auto cached = static_cast<double>(prefix.size());
  const StepWork work{.rows = static_cast<double>(prompt),
                      .attended_tokens = cached + prompt / 2.0,
                      .kv_tokens = cached,
                      .logit_rows = 1};
  BenchRecord record{.metric = "prefill",
                     .prompt_tokens = prompt,
                     .depth_tokens = std::ssize(prefix),
                     .seconds = median(whole)};
  add(record, work, prompt);
  record.metric = "ttft";
  record.seconds = median(first);
  add(record, work, prompt);
  return {};
}

Status Bench::decode(std::int32_t depth) {
  QUIRE_TRY(const auto prefix, cached_prefix(depth));
  std::vector<double> per_token;
  const std::int32_t steps = options_.generate;
  for (std::int32_t i = 0; i < options_.repeat; ++i) {
    QUIRE_TRY(const auto outputs, generate({join(prefix, prompts_.take(1))}, steps + 1));
    const Timing& timing = outputs[0].timing;
    per_token.push_back((timing.total_seconds - timing.first_token_seconds) / steps);
  }
  const double context = static_cast<double>(prefix.size()) + 1 + steps / 2.0;
  add({.metric = "decode", .depth_tokens = std::ssize(prefix), .seconds = median(per_token)},
      {.rows = 1, .attended_tokens = context, .kv_tokens = context, .logit_rows = 1}, 1);
  return {};
}

Status Bench::batched_decode(std::int32_t batch, std::int32_t own) {
  QUIRE_TRY(const auto shared, cached_prefix(options_.shared_prefix));
  std::vector<std::vector<TokenId>> contexts;
  for (std::int32_t b = 0; b < batch; ++b) {
    QUIRE_TRY(const auto context, cached_prefix(own, b));
    contexts.push_back(join(shared, context));
  }
  std::vector<double> per_step;
  std::vector<double> overheads;
  const std::int32_t steps = options_.generate;
  for (std::int32_t i = 0; i < options_.repeat; ++i) {
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
    per_step.push_back((total - first) / steps);
    overheads.push_back((after.overhead_seconds() - before.overhead_seconds()) /
                        static_cast<double>(after.steps - before.steps));
  }
  const std::int64_t shared_tokens = std::ssize(shared);
  const std::int64_t own_tokens = std::ssize(contexts.front()) - shared_tokens;
  const double unshared = static_cast<double>(own_tokens) + 1 + steps / 2.0;
  add({.metric = "batched_decode",
       .depth_tokens = own_tokens,
       .batch = batch,
       .shared_tokens = shared_tokens,
       .seconds = median(per_step),
       .overhead_seconds = median(overheads)},
      {.rows = static_cast<double>(batch),
       .attended_tokens = static_cast<double>(shared_tokens) + unshared,
       .kv_tokens = static_cast<double>(shared_tokens) + batch * unshared,
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
    QUIRE_TRY(const double restore, diagnostics::time_restore(runtime_, prefix));
    const double floor = floors_.kv_seconds(tokens);
    add_plain({.metric = "restore",
               .depth_tokens = std::ssize(prefix),
               .seconds = restore,
               .bytes_per_second = floors_.kv_bytes(tokens) / restore,
               .floor_seconds = floor,
               .of_floor = floor / restore});
  }
  QUIRE_TRY(const double fork, diagnostics::time_fork(runtime_, prefix));
  add_plain({.metric = "fork", .depth_tokens = std::ssize(prefix), .seconds = fork});
  if (windowed) {
    return {};
  }
  const auto take = [this](std::int32_t count) { return prompts_.take(count); };
  QUIRE_TRY(const double compose, diagnostics::time_compose(runtime_, depth, take));
  add_plain({.metric = "compose", .depth_tokens = std::ssize(prefix), .seconds = compose});
  return {};
}

Status check_range(const std::vector<std::int32_t>& values, std::int32_t lowest,
                   std::string_view name) {
  for (const std::int32_t value : values) {
    if (value < lowest) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(name, " must be at least ", lowest, ", not ", value)};
    }
  }
  return {};
}

// All must fit before anything is measured: a run that ends where the context does is a fast one.
Status check_context(const BenchOptions& options, const model::ModelConfig& config) {
  const std::int64_t block = options.llm.block_tokens;
  const std::int64_t decoded = std::int64_t{options.generate} + 1;
  std::int64_t longest = 0;
  const auto add = [&](std::int64_t cached, std::int64_t more) {
    longest = std::max(longest, cached / block * block + more);
  };
  for (const std::int64_t depth : options.depth) {
    add(depth, decoded);
    for (const std::int32_t prompt : options.prompt) {
      add(depth, prompt);
    }
    if (depth >= block && !has_window(config)) {
      longest = std::max(longest, depth + diagnostics::kComposedQueryTokens);
    }
  }
  if (!options.batch.empty()) {
    add(options.shared_prefix, decoded);
  }
  if (longest <= config.context_length) {
    return {};
  }
  return {
      ErrorCode::kOverflow,
      base::str_cat("the longest measurement needs ", longest, " positions, the model's context ",
                    "has ", config.context_length, "; lower depth, prompt or generate")};
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

Status BenchOptions::validate() const {
  QUIRE_TRY_STATUS(check_range(prompt, 1, "prompt"));
  QUIRE_TRY_STATUS(check_range(depth, 0, "depth"));
  QUIRE_TRY_STATUS(check_range(batch, 1, "batch"));
  QUIRE_TRY_STATUS(check_range({generate, repeat}, 1, "generate and repeat"));
  QUIRE_TRY_STATUS(check_range({shared_prefix}, 0, "shared_prefix"));
  return engine::check_options(llm);
}

Result<std::vector<BenchRecord>> run_bench(
    const std::string& model, const BenchOptions& options,
    const std::function<void(const std::string&)>& progress) try {
  QUIRE_TRY_STATUS(options.validate());
  const auto say = [&progress](const std::string& text) {
    if (progress) {
      progress(text);
    }
  };
  say(base::str_cat("loading ", model));
  QUIRE_TRY(const auto runtime,
            runtime::Runtime::start(model, engine::to_engine_options(options.llm)));
  engine::Engine& engine = runtime->engine();
  QUIRE_TRY_STATUS(check_context(options, engine.model_config()));
  say("measuring the machine's ceilings");
  std::optional<kernels::DeviceCeilings> ceilings;
  if (engine.accelerator() != nullptr) {
    QUIRE_TRY(ceilings, kernels::measure_device_ceilings(*engine.accelerator()));
  }
  Bench bench(*runtime, options, ceilings);
  for (const std::int32_t depth : options.depth) {
    QUIRE_TRY_STATUS(measure_at(depth, options.prompt, bench, say));
  }
  for (const std::int32_t batch : options.batch) {
    QUIRE_TRY_STATUS(measure_batch(batch, options, bench, say));
  }
  return std::move(bench.records);
} catch (const std::bad_alloc&) {
  return base::no_memory("a measurement");
}

}  // namespace quire
