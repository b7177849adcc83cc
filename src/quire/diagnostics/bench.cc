// run_bench: checks the options, loads the model and measures it.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/diagnostics.h"
#include "quire/diagnostics/bench_runs.h"
#include "quire/diagnostics/bench_state.h"
#include "quire/engine/engine.h"
#include "quire/engine/llm_options.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"

namespace quire {
namespace {

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

// Checks that everything fits before anything is measured: a run that ends where the context does
// is a fast one.
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
    if (depth >= block && !diagnostics::has_window(config)) {
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
  QUIRE_TRY_STATUS(check_context(options, runtime->engine().model_config()));
  return diagnostics::measure(*runtime, options, say);
} catch (const std::bad_alloc&) {
  return base::no_memory("a measurement");
}

}  // namespace quire
