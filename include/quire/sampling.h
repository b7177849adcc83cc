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

// Parameters of one request: how tokens are chosen, and when the output ends. Plain data; a request
// keeps a copy.
//
// Order of application: logit bias and penalties, temperature, top-k, top-p on what is left, min-p
// against the most likely token.
// The repetition penalty counts tokens of prompt and output. The other two penalties count the
// output alone.
struct SamplingParams {
  // Divides the logits; 0 or more. 0 is greedy: the most likely token, the lower id among equals.
  double temperature = 1.0;
  // Share of probability that the kept tokens have together, in (0, 1]. 1 keeps all.
  double top_p = 1.0;
  // Number of most likely tokens to keep. 0 keeps all.
  std::int32_t top_k = 0;
  // Least probability of a kept token, as a share of the most likely token's, in [0, 1].
  double min_p = 0.0;
  // Divides positive logits and multiplies negative ones, of tokens in prompt or output; above 0.
  double repetition_penalty = 1.0;
  // Subtracted once from the logit of every token in the output.
  double presence_penalty = 0.0;
  // Subtracted from a token's logit for each of its occurrences in the output.
  double frequency_penalty = 0.0;
  // Maximum number of tokens to generate. 0 computes the prompt and returns no token.
  std::int32_t max_tokens = 256;
  // Number of tokens before which no EOS, stop id or stop string ends the output; at most
  // max_tokens.
  std::int32_t min_tokens = 0;
  // Up to 64 strings of 1 to 4,096 bytes. The text ends before the first of them that comes.
  std::vector<std::string> stop = {};
  // Up to 65,536 ids. Such an id ends the output and is the output's last id.
  std::vector<TokenId> stop_token_ids = {};
  // True: the model's own end tokens do not end the output.
  bool ignore_eos = false;
  // Seed of the random choices. One seed gives the same ids whatever else is in the batch; on a GPU
  // only with LLMOptions::deterministic.
  // Not given: a request that chooses at random takes the next draw from the engine's seed, so that
  // requests differ. Prefill and greedy requests draw nothing.
  std::optional<std::uint64_t> seed = {};
  // Number of most likely tokens, 0 to 1,024, whose log probabilities each token brings, with the
  // chosen token's own. Not given: none.
  std::optional<std::int32_t> logprobs = {};
  // Up to 65,536 pairs of id and finite number. The number is added to the logit of the id.
  std::vector<std::pair<TokenId, double>> logit_bias = {};

  // Number of outputs, 1 to 16, for one computation of the prompt (GenerationOutput::outputs).
  // Output i uses seed + i. For LLM::generate, LLM::chat and calls that generate from chunks; other
  // calls return kInvalidArgument for more than 1.
  std::int32_t n = 1;
  // Number of tokens to guess at most where LLMOptions::speculate is set, 0 or more. 0 guesses
  // none. Not given: as many as the LLM does.
  std::optional<std::int32_t> speculate = {};

  // Checks every field by itself. The vocabulary's size is checked later, with the request.
  // Errors: kInvalidArgument names the field, its value and the range. An id that logit_bias names
  // twice is an error.
  [[nodiscard]] QUIRE_API Status validate() const;
};

}  // namespace quire
