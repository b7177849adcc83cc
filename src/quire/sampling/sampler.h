// Logits to token, one row at a time, in the order that include/quire/sampling.h states.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::sampling {

// What a row's choice depends on besides its logits. `seed` and `index` key a counter-based
// generator, so the choice does not depend on the batch.
struct SampleContext {
  const SamplingParams* params = nullptr;
  std::uint64_t seed = 0;  // params->seed, or one drawn for the request
  std::int32_t index = 0;  // number of tokens already generated
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  std::span<const TokenId> end_ids;  // EOS and stop ids: forbidden before min_tokens
};

struct SampledToken {
  TokenId id = -1;
  // id -> natural log of the unmodified softmax: the k most likely, most likely first, then the
  // chosen one unless it is among them. Empty unless params->logprobs.
  std::vector<std::pair<TokenId, float>> logprobs;
};

// Scratch that a sampler keeps between calls; one per thread.
class Sampler {
 public:
  // logits: [vocab], overwritten. kInvalidArgument when a NaN is met or nothing can be chosen.
  [[nodiscard]] Result<SampledToken> sample(std::span<float> logits, const SampleContext& context);

 private:
  std::vector<std::pair<float, TokenId>> candidates_;
};

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a uniform
// double in [0, 1) that depends on nothing but its two arguments.
[[nodiscard]] double uniform_at(std::uint64_t seed, std::uint64_t counter);

}  // namespace quire::sampling
