#include "quire/engine/llm_options.h"

#include <string>

#include "quire/engine/engine_core.h"
#include "quire/llm.h"

namespace quire::engine {

namespace {

// A GPU computes in bf16 whatever the checkpoint holds, quantised tensors too.
std::string dtype_of(const LLMOptions& options) {
  const bool on_cpu = options.device == "cpu";
  return options.dtype == "auto" && !on_cpu ? "bfloat16" : options.dtype;
}

}  // namespace

EngineOptions to_engine_options(const LLMOptions& options) {
  return {.device = options.device,
          .deterministic = options.deterministic,
          .block_tokens = options.block_tokens,
          .kv_budget_bytes = options.kv_budget_bytes,
          .max_batch_tokens = options.max_batch_tokens,
          .threads = options.threads,
          .seed = options.seed,
          .prefix_cache = options.prefix_cache,
          .share_reads = options.share_reads,
          .model = {.dtype = dtype_of(options),
                    .quantize = options.quantize,
                    .kv_dtype = options.kv_dtype,
                    .seed = options.seed,
                    .progress = options.progress,
                    .weights_store = options.cache_weights ? options.store : ""}};
}

}  // namespace quire::engine
