#include "quire/fields.h"

#include <span>

#include "quire/engine/sampling_json.h"
#include "quire/options.h"

namespace quire {
namespace {

constexpr LLMField kLLMFields[] = {
    {"device", &LLMOptions::device, "cpu, cuda or cuda:N"},
    {"deterministic", &LLMOptions::deterministic,
     "on a GPU: faster; the last bits then depend on what is computed together"},
    {"dtype", &LLMOptions::dtype, "compute type: auto, float32, bfloat16, float16 (on a GPU)"},
    {"quantize", &LLMOptions::quantize, "weights: auto (as they are), q8g32, q4g32, fp8"},
    {"kv_dtype", &LLMOptions::kv_dtype,
     "auto (= dtype), float32, bfloat16, float16 (on a GPU), int8, fp8, int4"},
    {"block_tokens", &LLMOptions::block_tokens, "tokens of a KV block, 1..256"},
    {"kv_budget", &LLMOptions::kv_budget_bytes,
     "memory of KV blocks, such as 512MiB, or auto (default 1GiB)"},
    {"state_share", &LLMOptions::state_share, "share of it for states of layers that carry one"},
    {"host_kv_budget", &LLMOptions::host_kv_budget_bytes,
     "host memory for restore points that kv_budget gives up, such as 4GiB (default none)"},
    {"max_batch_tokens", &LLMOptions::max_batch_tokens, "rows of one step"},
    {"threads", &LLMOptions::threads, "0 = one for each core"},
    {"seed", &LLMOptions::seed, "of requests that bring none"},
    {"prefix_cache", &LLMOptions::prefix_cache, "compute every prompt from its first token"},
    {"share_reads", &LLMOptions::share_reads,
     "read what requests share for each of them: same results, slower"},
    {"store", &LLMOptions::store, "directory that outlives the process"},
    {"cache_weights", &LLMOptions::cache_weights,
     "keep packed weights in the store: later starts map them"},
    {"chat_template", &LLMOptions::chat_template,
     "text or file of a chat template, in place of the model's own"},
    {"scheduler", &LLMOptions::scheduler,
     "order of requests: fcfs, priority, shortest, fair, adaptive"},
    {"aging_seconds", &LLMOptions::aging_seconds,
     "raise a priority by one, or make a request overdue (shortest)"},
    {"decode_weight", &LLMOptions::decode_weight, "service of a generated token (fair)"},
    {"max_wait_seconds", &LLMOptions::max_wait_seconds,
     "after which the oldest goes first (adaptive)"},
    {"max_waiting", &LLMOptions::max_waiting, "requests that may wait; -1 = any number"},
    {"max_decode_gap_ms", &LLMOptions::max_decode_gap_ms,
     "longest time between two tokens while prompts are computed; 0 = no bound"},
    {"preemption", &LLMOptions::preemption, "KV of preempted requests: auto, recompute, swap"},
    {"speculate", &LLMOptions::speculate,
     "guess tokens, which the model checks: ngram, suffix, or a JSON object with a method"},
};

}  // namespace

std::span<const SamplingField> sampling_fields() { return engine::kSamplingFields; }
std::span<const LLMField> llm_fields() { return kLLMFields; }

}  // namespace quire
