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

// A token that may still be chosen.
struct Candidate {
  float logit = 0;
  TokenId id = -1;
};

// Holds scratch between calls, so that a steady batch allocates nothing; one per thread.
class Sampler {
 public:
  // logits: [vocab], overwritten. kInternal when a logit is NaN or +inf, kInvalidArgument when
  // every token is forbidden. Cost: a few passes over the row; sorting only what top-k and top-p
  // need.
  [[nodiscard]] Result<SampledToken> sample(std::span<float> logits, const SampleContext& context);

 private:
  void collect(std::span<const float> logits);
  [[nodiscard]] std::vector<std::pair<TokenId, float>> top_logprobs(std::span<const float> logits,
                                                                    float top, std::size_t count);
  void penalise(std::span<float> logits, const SampleContext& context);
  [[nodiscard]] Result<TokenId> choose(std::span<float> logits, const SampleContext& context);
  void keep_nucleus(double top_p, float top);
  [[nodiscard]] TokenId draw(float top, double uniform) const;

  std::vector<Candidate> candidates_;
  std::vector<TokenId> seen_;
  std::vector<float> unmodified_;  // [vocab] logits before penalties, if logprobs are wanted
  double log_norm_ = 0;            // of unmodified_
};

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a uniform
// double in [0, 1) that depends on nothing but its two arguments.
[[nodiscard]] double uniform_at(std::uint64_t seed, std::uint64_t counter);

}  // namespace quire::sampling
