#include "quire/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kernels/choice.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/philox.h"
#include "quire/sampling/weights.h"
#include "quire/types.h"

namespace quire::sampling {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Orders more likely ones first; the lower id first among equals.
bool before(const std::pair<float, TokenId>& a, const std::pair<float, TokenId>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

std::size_t at(TokenId id) { return static_cast<std::size_t>(id); }

Status check_ids(std::span<const TokenId> ids, std::string_view what, std::size_t vocab) {
  for (const TokenId id : ids) {
    if (id < 0 || at(id) >= vocab) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(what, " holds the token id ", id, ", the vocabulary has ", vocab)};
    }
  }
  return {};
}

Status check_ids(const SampleContext& context, std::size_t vocab) {
  for (const auto& entry : context.params->logit_bias) {
    QUIRE_TRY_STATUS(check_ids(std::span(&entry.first, 1), "logit_bias", vocab));
  }
  QUIRE_TRY_STATUS(check_ids(context.end_ids, "list of stop ids", vocab));
  // Only ids that the choice looks at are checked: a step may not take longer for tokens that were
  // sampled before it.
  const SamplingParams& params = *context.params;
  if (params.repetition_penalty != 1) {
    QUIRE_TRY_STATUS(check_ids(context.prompt, "prompt", vocab));
  }
  return penalises(params) ? check_ids(context.output, "output", vocab) : Status();
}

// Results of one pass over a row: the place of the largest, the first among equals, and whether a
// logit is NaN or +inf.
struct Survey {
  std::size_t largest = 0;
  bool refused = false;
};

constexpr std::size_t kSurveyed = 256;  // logits at a time

struct Seen {
  unsigned above = 0;  // not bools, which the compiler would test logit by logit
  unsigned refused = 0;
};

// Looks at `count` logits. `count` is a constant where it is inlined, for the compiler to use
// vectors.
[[gnu::always_inline]] inline Seen look(const float* logits, std::size_t count, float limit) {
  Seen seen;
  for (std::size_t i = 0; i < count; ++i) {
    seen.above |= static_cast<unsigned>(logits[i] > limit);
    seen.refused |= static_cast<unsigned>(!(logits[i] < -kNever));
  }
  return seen;
}

// Finds the largest logit and what is refused. Few blocks hold a logit above all before them: the
// others are only compared, many logits at a time.
Survey survey(std::span<const float> logits) {
  Survey row;
  for (std::size_t first = 0; first < logits.size(); first += kSurveyed) {
    const auto block = logits.subspan(first, std::min(kSurveyed, logits.size() - first));
    const float limit = logits[row.largest];
    const Seen seen = block.size() == kSurveyed ? look(block.data(), kSurveyed, limit)
                                                : look(block.data(), block.size(), limit);
    row.refused = row.refused || seen.refused != 0;
    if (seen.above != 0) {
      row.largest =
          first + static_cast<std::size_t>(std::ranges::max_element(block) - block.begin());
    }
  }
  return row;
}

Status check_logits(std::span<const float> logits, const Survey& row) {
  if (logits.empty()) {
    return {ErrorCode::kInvalidArgument, "there are no logits to choose from"};
  }
  if (!row.refused) {
    return {};
  }
  const auto first = std::ranges::find_if(logits, [](float logit) { return !(logit < -kNever); });
  return {ErrorCode::kInvalidArgument, base::str_cat("logit of token ", first - logits.begin(),
                                                     " is ", *first, ", no token can be chosen")};
}

double log_sum_exp(std::span<const float> logits, double peak) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - peak);
  }
  return peak + std::log(sum);
}

float logprob(float logit, double log_sum) {
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

// Bins of weights by sign, exponent and the first five bits of the fraction. Weights are in [0, 1].
constexpr int kBinShift = 18;
constexpr std::size_t kBins = (std::bit_cast<std::uint32_t>(1.0F) >> kBinShift) + 1;

std::size_t bin_of(float weight) { return std::bit_cast<std::uint32_t>(weight) >> kBinShift; }

// Adds to `sum` the weights that are at least `min_weight`, one after the other.
double add_weights(double sum, std::span<const float> weights, double min_weight) {
  for (const float weight : weights) {
    sum += weight >= min_weight ? weight : 0.0F;
  }
  return sum;
}

// Returns where the running sum of the weights that are at least `min_weight` first exceeds
// `target`. Precondition: the largest weight is 1 and min_weight is at most 1.
std::size_t pick(std::span<const float> weights, double min_weight, double target) {
  double reached = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0 && weights[i] >= min_weight) {
      reached += weights[i];
      last = i;
      if (reached > target) {
        break;
      }
    }
  }
  return last;
}

}  // namespace

bool penalises(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

kernels::Choice choice_of(const SampleContext& context) {
  const SamplingParams& params = *context.params;
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .uniform = uniform_at(context.seed, static_cast<std::uint64_t>(context.index)),
          .top_k = params.top_k,
          .wanted = 1,
          .logprobs = params.logprobs.value_or(-1)};
}

void SampledToken::add_chosen(float logprob) {
  const auto is_chosen = [&](const auto& entry) { return entry.first == id; };
  if (std::ranges::none_of(logprobs, is_chosen)) {
    logprobs.emplace_back(id, logprob);
  }
}

kernels::LogitChange& Sampler::change_of(TokenId id) {
  std::int32_t& place = places_[at(id)];
  if (place == 0) {
    changes_.push_back({.id = id});
    place = static_cast<std::int32_t>(changes_.size());
  }
  return changes_[static_cast<std::size_t>(place - 1)];
}

Result<std::span<const kernels::LogitChange>> Sampler::changes(const SampleContext& context,
                                                               std::size_t vocab) {
  const SamplingParams& params = *context.params;
  QUIRE_TRY_STATUS(check_ids(context, vocab));
  changes_.clear();
  if (params.logit_bias.empty() && !penalises(params) && context.index >= params.min_tokens) {
    return std::span<const kernels::LogitChange>();
  }
  places_.resize(std::max(places_.size(), vocab), 0);
  for (const auto& [id, bias] : params.logit_bias) {
    change_of(id).bias += bias;
  }
  if (params.repetition_penalty != 1) {
    for (const auto& ids : {context.prompt, context.output}) {
      for (const TokenId id : ids) {
        change_of(id).repetition = params.repetition_penalty;
      }
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const TokenId id : context.output) {
      change_of(id).penalty += 1;  // counts the occurrences of the id
    }
    for (kernels::LogitChange& change : changes_) {
      if (change.penalty > 0) {
        change.penalty = params.presence_penalty + (params.frequency_penalty * change.penalty);
      }
    }
  }
  if (context.index < params.min_tokens) {
    for (const TokenId id : context.end_ids) {
      change_of(id).forbidden = 1;
    }
  }
  for (const kernels::LogitChange& change : changes_) {
    places_[at(change.id)] = 0;
  }
  return std::span<const kernels::LogitChange>(changes_);
}

// Leaves the `count` most likely tokens in candidates_, most likely first. One pass keeps those
// above the least of the best so far, and thins them out when there are twice too many. Later ids
// do not displace equal ones, so that ties go to the lower id.
void Sampler::select_largest(std::span<const float> logits, std::size_t count) {
  const std::size_t room = (2 * count) + 64;
  const auto thin_out = [&] {
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(candidates_.begin(), last, candidates_.end(), before);
    candidates_.resize(count);
  };
  candidates_.clear();
  float threshold = kNever;
  bool full = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (full && !(logits[i] > threshold)) {
      continue;
    }
    candidates_.emplace_back(logits[i], static_cast<TokenId>(i));
    if (candidates_.size() >= room) {
      thin_out();
      threshold = candidates_.back().first;
      full = true;
    }
  }
  if (candidates_.size() > count) {
    thin_out();
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
}

void Sampler::weigh_candidates(float peak, double temperature) {
  candidate_logits_.clear();
  for (const auto& candidate : candidates_) {
    candidate_logits_.push_back(candidate.first);
  }
  candidate_weights_.resize(candidates_.size());
  softmax_weights(candidate_logits_, peak, temperature, candidate_weights_);
}

// Keeps the fewest of the most likely candidates that have `top_p` of the sum of all candidates.
void Sampler::cut_candidates(double top_p) {
  const double mass =
      top_p * std::accumulate(candidate_weights_.begin(), candidate_weights_.end(), 0.0);
  double reached = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    reached += candidate_weights_[i];
    if (reached >= mass) {
      candidates_.resize(i + 1);
      return;
    }
  }
}

// Zeroes the row's weights but for the fewest of the most likely tokens that have `top_p` of their
// sum. A histogram over the leading bits of the weights says where the border lies, so that only
// the tokens near to it are sorted.
void Sampler::cut_row(std::span<const float> logits, double top_p) {
  bin_weights_.assign(kBins, 0.0);
  for (const float weight : row_weights_) {
    bin_weights_[bin_of(weight)] += weight;
  }
  const double mass = top_p * std::accumulate(bin_weights_.begin(), bin_weights_.end(), 0.0);
  double reached = 0;
  std::size_t border = kBins - 1;
  for (; border > 0 && reached + bin_weights_[border] < mass; --border) {
    reached += bin_weights_[border];
  }
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (bin_of(row_weights_[i]) == border) {
      candidates_.emplace_back(logits[i], static_cast<TokenId>(i));
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
  const auto last = std::find_if(candidates_.begin(), candidates_.end(), [&](const auto& each) {
    reached += row_weights_[at(each.second)];
    return reached >= mass;
  });
  if (last == candidates_.end()) {
    return;
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (before(*last, {logits[i], static_cast<TokenId>(i)})) {
      row_weights_[i] = 0;
    }
  }
}

// Weighs the row and adds up what is at least min_p of it, block by block, while it is near.
double Sampler::weigh_row(std::span<const float> logits, float peak, const SamplingParams& params) {
  constexpr std::size_t kBlock = 2048;
  row_weights_.resize(logits.size());
  double sum = 0;
  for (std::size_t first = 0; first < logits.size(); first += kBlock) {
    const std::size_t size = std::min(kBlock, logits.size() - first);
    const auto weights = std::span(row_weights_).subspan(first, size);
    softmax_weights(logits.subspan(first, size), peak, params.temperature, weights);
    sum = add_weights(sum, weights, params.min_p);
  }
  return sum;
}

TokenId Sampler::draw(std::span<const float> logits, float peak, const SampleContext& context) {
  const SamplingParams& params = *context.params;
  const double uniform = uniform_at(context.seed, static_cast<std::uint64_t>(context.index));
  const auto top_k = static_cast<std::size_t>(params.top_k);
  if (top_k == 0 || top_k >= logits.size()) {
    double sum = weigh_row(logits, peak, params);
    if (params.top_p < 1) {
      cut_row(logits, params.top_p);
      sum = add_weights(0, row_weights_, params.min_p);
    }
    return static_cast<TokenId>(pick(row_weights_, params.min_p, uniform * sum));
  }
  select_largest(logits, top_k);
  if (params.top_p < 1) {
    weigh_candidates(peak, params.temperature);
    cut_candidates(params.top_p);
  }
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.second < b.second; });
  weigh_candidates(peak, params.temperature);
  const double sum = add_weights(0, candidate_weights_, params.min_p);
  return candidates_[pick(candidate_weights_, params.min_p, uniform * sum)].second;
}

Result<SampledToken> Sampler::sample(std::span<float> logits, const SampleContext& context) {
  const SamplingParams& params = *context.params;
  const Survey original = survey(logits);
  QUIRE_TRY_STATUS(check_logits(logits, original));
  QUIRE_TRY(const auto changes, this->changes(context, logits.size()));
  SampledToken token;
  double log_sum = 0;
  if (params.logprobs) {
    log_sum = log_sum_exp(logits, logits[original.largest]);
    const auto wanted = static_cast<std::size_t>(*params.logprobs);
    if (wanted > 0) {
      select_largest(logits, std::min(wanted, logits.size()));
      for (const auto& [logit, id] : candidates_) {
        token.logprobs.emplace_back(id, logprob(logit, log_sum));
      }
    }
  }
  originals_.clear();
  for (const kernels::LogitChange& change : changes) {
    float& logit = logits[at(change.id)];
    originals_.emplace_back(logit, change.id);
    logit = kernels::changed_logit(logit, change);
  }
  const std::size_t likeliest = changes.empty() ? original.largest : survey(logits).largest;
  const float peak = logits[likeliest];
  if (peak == kNever) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("no token can be chosen: all ", logits.size(),
                          " logits are -inf after logit_bias and min_tokens")};
  }
  token.id =
      params.temperature == 0 ? static_cast<TokenId>(likeliest) : draw(logits, peak, context);
  if (params.logprobs) {
    const auto original = std::ranges::find(originals_, token.id, &Candidate::second);
    const float logit = original == originals_.end() ? logits[at(token.id)] : original->first;
    token.add_chosen(logprob(logit, log_sum));
  }
  return token;
}

}  // namespace quire::sampling
