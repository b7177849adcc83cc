// The sampler on the device: logits to tokens and their log probabilities without a copy of the
// logits to the host. In turn: change_logits, choose; for log probabilities then restore_logits and
// find_logprobs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/choice.h"

namespace quire::kernels::cuda {

inline constexpr std::int32_t kNotChosen = -1;

// chosen[r] = the token of row r by choices[r], or kNotChosen: not wanted, or a logit is NaN or
// +inf, or all are -inf. Weights are counted in units of 2^-44 of the most likely token's. Sums of
// integers have one value in any order, so a row's token depends on its logits and choice alone. A
// block to a row, which reads it once for the most likely token, up to 12 times to sample.
struct ChooseParams {
  const float* logits = nullptr;    // [rows, vocab]
  const Choice* choices = nullptr;  // [rows]
  std::int64_t rows = 0;
  std::int32_t vocab = 0;
  std::int32_t* chosen = nullptr;  // [rows]
};
[[nodiscard]] cudaError_t choose(const ChooseParams& params, cudaStream_t stream);

// No two changes are of one logit. A change of row -1 does nothing.
struct ChangeParams {
  const LogitChange* changes = nullptr;  // [count]
  std::int64_t count = 0;
  float* logits = nullptr;  // [rows, vocab]
  std::int32_t vocab = 0;
  float* originals = nullptr;  // [count] the logits before, or null: they are not kept
};
// Replaces each changed logit by changed_logit() of it, in place.
[[nodiscard]] cudaError_t change_logits(const ChangeParams& params, cudaStream_t stream);
// Undoes change_logits by its originals.
[[nodiscard]] cudaError_t restore_logits(const ChangeParams& params, cudaStream_t stream);

// Finds log probabilities for each row r that has a token and whose choice asks for them.
// logprobs[r] has that token's, then those of its choice's number of most likely tokens, most
// likely first. Among equal ones the lower id comes first; there are as many as the vocabulary has.
// chosen[r] becomes kNotChosen where a logit is NaN or +inf, or all are -inf. The sum of the
// softmax is one of integers, as in choose. A block to a row, which reads it twice, and six times
// more for the most likely tokens.
struct LogprobParams {
  const float* logits = nullptr;    // [rows, vocab]
  const Choice* choices = nullptr;  // [rows]
  std::int64_t rows = 0;
  std::int32_t vocab = 0;
  std::int32_t* chosen = nullptr;  // [rows]
  // [rows, width]: width is greater than each choice's number, which is at most kMostLogprobs
  TokenLogprob* logprobs = nullptr;
  std::int32_t width = 0;
};
[[nodiscard]] cudaError_t find_logprobs(const LogprobParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
