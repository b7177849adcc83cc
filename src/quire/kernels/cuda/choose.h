// The sampler on the device: logits to tokens without a copy of the logits to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/choice.h"

namespace quire::kernels::cuda {

inline constexpr std::int32_t kNotChosen = -1;

// chosen[r] = the token of row r by choices[r], or kNotChosen: not wanted, or a logit is NaN or
// +inf, or all are -inf. Weights are counted in units of 2^-44 of the most likely token's; sums of
// integers have one value in any order, so a row's token depends on its logits and choice alone.
// A block to a row, which reads it once for the most likely token, up to 12 times to sample.
struct ChooseParams {
  const float* logits = nullptr;    // [rows, vocab]
  const Choice* choices = nullptr;  // [rows]
  std::int64_t rows = 0;
  std::int32_t vocab = 0;
  std::int32_t* chosen = nullptr;  // [rows]
};
[[nodiscard]] cudaError_t choose(const ChooseParams& params, cudaStream_t stream);

// changed_logit of each of `changes`, in place; no two are of one logit. What is of row -1 does
// nothing.
[[nodiscard]] cudaError_t change_logits(const LogitChange* changes, std::int64_t count,
                                        float* logits, std::int32_t vocab, cudaStream_t stream);

}  // namespace quire::kernels::cuda
