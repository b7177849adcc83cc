// SamplingParams: how the next token is chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

// Order of application: logit bias and penalties, temperature, top-k, top-p on what is left, min-p
// against the most likely token. The repetition penalty counts prompt and output, the other two the
// output alone.
struct SamplingParams {
  double temperature = 1.0;            // 0 is greedy; ties go to the lower id
  double top_p = 1.0;                  // (0, 1]
  std::int32_t top_k = 0;              // 0 = off
  double min_p = 0.0;                  // [0, 1]
  double repetition_penalty = 1.0;     // > 0; divides positive logits, multiplies negative ones
  double presence_penalty = 0.0;       // subtracted once for every token already generated
  double frequency_penalty = 0.0;      // subtracted per occurrence in the output
  std::int32_t max_tokens = 256;       // 0 computes the prompt and returns no token
  std::int32_t min_tokens = 0;         // before them no EOS, stop id or stop string ends the output
  std::vector<std::string> stop = {};  // text ends before the first of them
  std::vector<TokenId> stop_token_ids = {};  // such an id ends the output and is its last id
  bool ignore_eos = false;
  // The same ids whatever else is in the batch. None: what chooses at random takes the next draw
  // from the engine's seed, so that requests differ; prefill and greedy requests draw nothing.
  std::optional<std::uint64_t> seed = {};
  std::optional<std::int32_t> logprobs = {};  // per token the k most likely and the chosen one
  std::vector<std::pair<TokenId, double>> logit_bias = {};

  // kInvalidArgument naming the field, its value and the range.
  [[nodiscard]] QUIRE_API Status validate() const;
};

}  // namespace quire
