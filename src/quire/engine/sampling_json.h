// The fields of SamplingParams, each once, and the parameters as JSON.
#pragma once

#include <string>

#include "quire/fields.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::engine {

// All fields, in the order of the struct (quire::sampling_fields).
inline constexpr SamplingField kSamplingFields[] = {
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
    {"n", &SamplingParams::n, "outputs for one prompt, 1..16"},
    {"speculate", &SamplingParams::speculate,
     "most tokens to guess, where the model does; 0 = none"},
};

// Returns a JSON object with the names and the order of kSamplingFields.
// Errors: kOutOfBlocks when the machine refuses memory.
[[nodiscard]] Result<std::string> sampling_json(const SamplingParams& params);

}  // namespace quire::engine
