#include "quire/engine/llm_options.h"

#include "quire/engine/engine.h"
#include "quire/llm.h"

namespace quire::engine {

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
          .model = {.dtype = options.dtype,
                    .quantize = options.quantize,
                    .kv_dtype = options.kv_dtype,
                    .seed = options.seed,
                    .progress = options.progress}};
}

}  // namespace quire::engine
