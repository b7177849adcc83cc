#include "quire/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "quire/base/str.h"

namespace quire::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Most likely first; equal logits by lower id.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Natural log of the sum of exponentials, in double and in id order.
double log_sum_exp(std::span<const float> logits, float top) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - top);
  }
  return top + std::log(sum);
}

Result<float> finite_maximum(std::span<const float> logits) {
  float top = kForbidden;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return {ErrorCode::kInternal,
              base::str_cat("the logit of token ", i, " is ", logits[i],
                            "; the weights or the input make the model overflow")};
    }
    top = std::max(top, logits[i]);
  }
  if (top == kForbidden) {
    return {ErrorCode::kInvalidArgument, "every token is forbidden; nothing can be chosen"};
  }
  return top;
}

TokenId greedy(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

void Sampler::collect(std::span<const float> logits) {
  candidates_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates_[i] = {.logit = logits[i], .id = static_cast<TokenId>(i)};
  }
}

std::vector<std::pair<TokenId, float>> Sampler::top_logprobs(std::span<const float> logits,
                                                             float top, std::size_t count) {
  collect(logits);
  count = std::min(count, candidates_.size());
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), before);
  const double norm = log_sum_exp(logits, top);
  std::vector<std::pair<TokenId, float>> logprobs;
  for (auto it = candidates_.begin(); it != end; ++it) {
    logprobs.emplace_back(it->id, static_cast<float>(it->logit - norm));
  }
  log_norm_ = norm;
  return logprobs;
}

void Sampler::penalise(std::span<float> logits, const SampleContext& context) {
  const SamplingParams& params = *context.params;
  for (const auto& [id, bias] : params.logit_bias) {
    logits[static_cast<std::size_t>(id)] += static_cast<float>(bias);
  }
  if (params.repetition_penalty != 1.0) {
    seen_.assign(context.prompt.begin(), context.prompt.end());
    seen_.insert(seen_.end(), context.output.begin(), context.output.end());
    std::sort(seen_.begin(), seen_.end());
    seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
    for (const TokenId id : seen_) {
      float& logit = logits[static_cast<std::size_t>(id)];
      const auto penalty = static_cast<float>(params.repetition_penalty);
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    seen_.assign(context.output.begin(), context.output.end());
    std::sort(seen_.begin(), seen_.end());
    for (auto it = seen_.begin(); it != seen_.end();) {
      const auto next = std::upper_bound(it, seen_.end(), *it);
      logits[static_cast<std::size_t>(*it)] -= static_cast<float>(
          params.presence_penalty + params.frequency_penalty * static_cast<double>(next - it));
      it = next;
    }
  }
  if (context.index < params.min_tokens) {
    for (const TokenId id : context.end_ids) {
      logits[static_cast<std::size_t>(id)] = kForbidden;
    }
  }
}

// Keeps the smallest set of most likely candidates whose share reaches `top_p`. Sorts only as many
// as it needs.
void Sampler::keep_nucleus(double top_p, float top) {
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    total += std::exp(static_cast<double>(candidate.logit) - top);
  }
  const double wanted = top_p * total;
  double sum = 0;
  std::size_t kept = 0;
  for (std::size_t sorted = 0; kept < candidates_.size();) {
    const std::size_t end = std::min(candidates_.size(), std::max<std::size_t>(64, sorted * 4));
    std::partial_sort(candidates_.begin() + static_cast<std::ptrdiff_t>(sorted),
                      candidates_.begin() + static_cast<std::ptrdiff_t>(end), candidates_.end(),
                      before);
    sorted = end;
    while (kept < sorted && sum < wanted) {
      sum += std::exp(static_cast<double>(candidates_[kept++].logit) - top);
    }
    if (sum >= wanted) {
      break;
    }
  }
  candidates_.resize(std::max<std::size_t>(kept, 1));
}

TokenId Sampler::draw(float top, double uniform) const {
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    total += std::exp(static_cast<double>(candidate.logit) - top);
  }
  const double target = uniform * total;
  double sum = 0;
  TokenId last = candidates_.front().id;
  for (const Candidate& candidate : candidates_) {
    const double weight = std::exp(static_cast<double>(candidate.logit) - top);
    if (weight == 0) {
      continue;
    }
    sum += weight;
    last = candidate.id;
    if (sum > target) {
      break;
    }
  }
  return last;
}

Result<TokenId> Sampler::choose(std::span<float> logits, const SampleContext& context) {
  const SamplingParams& params = *context.params;
  QUIRE_TRY(const float top_logit, finite_maximum(logits));
  if (params.temperature == 0) {
    return greedy(logits);
  }
  const auto inverse = static_cast<float>(1.0 / params.temperature);
  for (float& logit : logits) {
    logit *= inverse;
  }
  const float top = top_logit * inverse;
  collect(logits);
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k - 1, candidates_.end(),
                     before);
    candidates_.resize(static_cast<std::size_t>(params.top_k));
  }
  if (params.top_p < 1) {
    keep_nucleus(params.top_p, top);
  }
  if (params.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return std::exp(static_cast<double>(candidate.logit) - top) < params.min_p;
    });
  }
  // One order for every way that candidates were selected in.
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return draw(top, uniform_at(context.seed, static_cast<std::uint64_t>(context.index)));
}

Result<SampledToken> Sampler::sample(std::span<float> logits, const SampleContext& context) {
  SampledToken sampled;
  const auto& wanted = context.params->logprobs;
  if (wanted) {
    QUIRE_TRY(const float top, finite_maximum(logits));
    sampled.logprobs = top_logprobs(logits, top, static_cast<std::size_t>(*wanted));
    unmodified_.assign(logits.begin(), logits.end());
  }
  penalise(logits, context);
  QUIRE_TRY(sampled.id, choose(logits, context));
  const auto is_chosen = [&](const auto& entry) { return entry.first == sampled.id; };
  if (wanted && std::none_of(sampled.logprobs.begin(), sampled.logprobs.end(), is_chosen)) {
    const float logit = unmodified_[static_cast<std::size_t>(sampled.id)];
    sampled.logprobs.emplace_back(sampled.id, static_cast<float>(logit - log_norm_));
  }
  return sampled;
}

double uniform_at(std::uint64_t seed, std::uint64_t counter) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  std::array<std::uint32_t, 4> x = {static_cast<std::uint32_t>(counter),
                                    static_cast<std::uint32_t>(counter >> 32), 0, 0};
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kMultiplier0} * x[0];
    const std::uint64_t b = std::uint64_t{kMultiplier1} * x[2];
    x = {static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ key0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  const std::uint64_t bits = (std::uint64_t{x[1]} << 32 | x[0]) >> 11;  // 53 of them
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace quire::sampling
