// Logits to token, one row at a time, in the order that include/quire/sampling.h states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/kernels/choice.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/philox.h"
#include "quire/types.h"

namespace quire::sampling {

// Inputs of a row's choice besides its logits. `seed` and `index` key a counter-based generator, so
// the choice does not depend on the batch.
struct SampleContext {
  const SamplingParams* params = nullptr;  // valid
  std::uint64_t seed = 0;                  // params->seed, or one drawn for the request
  std::int32_t index = 0;                  // number of tokens already generated
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
  std::span<const TokenId> end_ids;  // EOS and stop ids: forbidden before min_tokens
};

// Returns the choice, once Sampler::changes are made.
[[nodiscard]] kernels::Choice choice_of(const SampleContext& context);

// Returns whether a choice depends on the tokens before it, not only on their number.
[[nodiscard]] bool penalises(const SamplingParams& params);

struct SampledToken {
  TokenId id = -1;
  // id -> natural log of the unmodified softmax: the k most likely, most likely first, then the
  // chosen one unless it is among them. Empty unless params->logprobs.
  std::vector<std::pair<TokenId, float>> logprobs;

  // Adds the chosen token's logprob, where those of the k most likely are there.
  void add_chosen(float logprob);
};

// Scratch that a sampler keeps between calls; one per thread. It grows to the vocabulary and to the
// longest row; after that a call allocates nothing but the logprobs that it returns.
class Sampler {
 public:
  // Chooses a token. logits: [vocab], overwritten. The choice depends on the row and the context
  // alone, bit for bit. Among the tokens that top-k, top-p and min-p leave, it is the first by id
  // at which the running sum of probabilities exceeds uniform_at(seed, index). kInvalidArgument
  // when a logit is NaN or +inf, an id is outside of the vocabulary, or all logits are -inf in the
  // end. O(vocab), plus O(n log n) in the n tokens that top-k leaves or that stand at the border of
  // top-p.
  //
  // Passes over the row: one finds the largest and what is refused, which is all that greedy choice
  // takes. Bias, penalties and min_tokens take another, and top-k takes one. Without top-k weighing
  // takes one, and picking up to one over the weights, with top-p four more. Logprobs take one, and
  // one for those of the most likely.
  [[nodiscard]] Result<SampledToken> sample(std::span<float> logits, const SampleContext& context);

  // Returns the changes that bias, penalties and min_tokens make to a row of `vocab` logits, an id
  // at most once; rows are 0. Valid until the next call. kInvalidArgument for an id outside of the
  // vocabulary. O(prompt and output) with a repetition penalty, O(output) with another.
  [[nodiscard]] Result<std::span<const kernels::LogitChange>> changes(const SampleContext& context,
                                                                      std::size_t vocab);

 private:
  using Candidate = std::pair<float, TokenId>;  // logit, id

  kernels::LogitChange& change_of(TokenId id);
  [[nodiscard]] TokenId draw(std::span<const float> logits, float peak,
                             const SampleContext& context);
  void select_largest(std::span<const float> logits, std::size_t count);
  void weigh_candidates(float peak, double temperature);
  void cut_candidates(double top_p);
  void cut_row(std::span<const float> logits, double top_p);
  [[nodiscard]] double weigh_row(std::span<const float> logits, float peak,
                                 const SamplingParams& params);

  std::vector<Candidate> candidates_;
  std::vector<float> candidate_logits_;   // logits of candidates_, contiguous
  std::vector<float> candidate_weights_;  // weights of candidates_
  std::vector<float> row_weights_;        // [vocab]
  std::vector<double> bin_weights_;       // sums of row_weights_ by size
  std::vector<kernels::LogitChange> changes_;
  std::vector<std::int32_t> places_;  // [vocab] in changes_, from 1 on; zero between uses
  std::vector<Candidate> originals_;  // logits before the changes
};

}  // namespace quire::sampling
