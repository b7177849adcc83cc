#include "quire/fields.h"

#include <span>

#include "quire/llm.h"
#include "quire/sampling.h"

namespace quire {
namespace {

constexpr SamplingField kSamplingFields[] = {
    {"temperature", &SamplingParams::temperature, "0 is greedy (default 1)"},
    {"top_p", &SamplingParams::top_p, "share of probability kept, (0, 1]"},
    {"top_k", &SamplingParams::top_k, "tokens kept, 0 = all"},
    {"min_p", &SamplingParams::min_p, "kept: at least so much of the likeliest, [0, 1]"},
    {"repetition_penalty", &SamplingParams::repetition_penalty,
     "of tokens in prompt and output, > 0"},
    {"presence_penalty", &SamplingParams::presence_penalty, "of tokens in the output"},
    {"frequency_penalty", &SamplingParams::frequency_penalty,
     "of tokens in the output, per occurrence"},
    {"max_tokens", &SamplingParams::max_tokens, "most tokens to generate (default 256)"},
    {"min_tokens", &SamplingParams::min_tokens,
     "tokens before an end is allowed, by stop texts too"},
    {"stop", &SamplingParams::stop, "text that ends the output"},
    {"stop_token_ids", &SamplingParams::stop_token_ids, "ids that end it"},
    {"ignore_eos", &SamplingParams::ignore_eos, "go on after the end token"},
    {"seed", &SamplingParams::seed, "makes the answer repeatable"},
    {"logprobs", &SamplingParams::logprobs, "report the K likeliest tokens of each step"},
    {"logit_bias", &SamplingParams::logit_bias, "added to a logit"},
};

constexpr LLMField kLLMFields[] = {
    {"device", &LLMOptions::device, "cpu, cuda or cuda:N"},
    {"deterministic", &LLMOptions::deterministic,
     "on a GPU: faster; the last bits then depend on what is computed together"},
    {"dtype", &LLMOptions::dtype, "compute type: auto, float32, bfloat16, float16 (on a GPU)"},
    {"quantize", &LLMOptions::quantize, "weights, while loading: none, q8g32, q4g32"},
    {"kv_dtype", &LLMOptions::kv_dtype, "auto (= dtype), float32, bfloat16, float16 (on a GPU)"},
    {"block_tokens", &LLMOptions::block_tokens, "tokens of a KV block, 1..256"},
    {"kv_budget", &LLMOptions::kv_budget_bytes,
     "memory of KV blocks, such as 512MiB, or auto (default 1GiB)"},
    {"max_batch_tokens", &LLMOptions::max_batch_tokens, "rows of one step"},
    {"threads", &LLMOptions::threads, "0 = one for each core"},
    {"seed", &LLMOptions::seed, "of requests that bring none"},
    {"prefix_cache", &LLMOptions::prefix_cache, "compute every prompt from its first token"},
    {"share_reads", &LLMOptions::share_reads,
     "read what requests share for each of them: same results, slower"},
    {"store", &LLMOptions::store, "directory that outlives the process"},
    {"cache_weights", &LLMOptions::cache_weights,
     "keep packed weights in the store: later starts map them"},
};

}  // namespace

std::span<const SamplingField> sampling_fields() { return kSamplingFields; }
std::span<const LLMField> llm_fields() { return kLLMFields; }

}  // namespace quire
