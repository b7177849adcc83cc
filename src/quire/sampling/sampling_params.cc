#include "quire/sampling/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/kernels/choice.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::sampling {
namespace {

constexpr std::int32_t kMaxChoices = 16;
constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 4096;
constexpr std::size_t kMaxIds = 65'536;  // most ids of stop_token_ids and of logit_bias

template <class T>
Status out_of_range(std::string_view field, T value, std::string_view range) {
  return {ErrorCode::kInvalidArgument, base::str_cat(field, " must be ", range, ", got ", value)};
}

Status check_penalties(const SamplingParams& params) {
  if (!(params.repetition_penalty > 0) || !std::isfinite(params.repetition_penalty)) {
    return out_of_range("repetition_penalty", params.repetition_penalty, "finite and above 0");
  }
  if (!std::isfinite(params.presence_penalty)) {
    return out_of_range("presence_penalty", params.presence_penalty, "finite");
  }
  if (!std::isfinite(params.frequency_penalty)) {
    return out_of_range("frequency_penalty", params.frequency_penalty, "finite");
  }
  return {};
}

Status check_counts(const SamplingParams& params) {
  if (params.max_tokens < 0) {
    return out_of_range("max_tokens", params.max_tokens, "0 or more");
  }
  if (params.min_tokens < 0) {
    return out_of_range("min_tokens", params.min_tokens, "0 or more");
  }
  if (params.min_tokens > params.max_tokens) {
    return out_of_range("min_tokens", params.min_tokens,
                        base::str_cat("at most max_tokens, which is ", params.max_tokens));
  }
  if (params.speculate && *params.speculate < 0) {
    return out_of_range("speculate", *params.speculate, "0 or more");
  }
  if (params.n < 1 || params.n > kMaxChoices) {
    return out_of_range("n", params.n, base::str_cat("in [1, ", kMaxChoices, "]"));
  }
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kernels::kMostLogprobs)) {
    return out_of_range("logprobs", *params.logprobs,
                        base::str_cat("in [0, ", kernels::kMostLogprobs, "]"));
  }
  return {};
}

Status check_stops(const SamplingParams& params) {
  if (params.stop.size() > kMaxStops) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("stop has ", params.stop.size(), " strings, at most ", kMaxStops,
                          " are allowed")};
  }
  for (const auto& stop : params.stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("stop holds a string of ", stop.size(), " bytes, 1 to ", kMaxStopBytes,
                            " are allowed")};
    }
  }
  if (params.stop_token_ids.size() > kMaxIds) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("stop_token_ids has ", params.stop_token_ids.size(), " ids, at most ",
                          kMaxIds, " are allowed")};
  }
  for (const TokenId id : params.stop_token_ids) {
    if (id < 0) {
      return out_of_range("an id in stop_token_ids", id, "0 or more");
    }
  }
  return {};
}

Status check_logit_bias(const SamplingParams& params) {
  if (params.logit_bias.size() > kMaxIds) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("logit_bias has ", params.logit_bias.size(), " entries, at most ",
                          kMaxIds, " are allowed")};
  }
  std::vector<TokenId> ids;
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0) {
      return out_of_range("a token id in logit_bias", id, "0 or more");
    }
    if (!std::isfinite(bias)) {
      return out_of_range(base::str_cat("logit_bias of token ", id), bias, "finite");
    }
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("logit_bias names token ", *twice, " more than once")};
  }
  return {};
}

}  // namespace

Status check_params(const SamplingParams& params) {
  // Written so that NaN fails too.
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return out_of_range("temperature", params.temperature, "finite and 0 or more");
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return out_of_range("top_p", params.top_p, "in (0, 1]");
  }
  if (params.top_k < 0) {
    return out_of_range("top_k", params.top_k, "0 (off) or more");
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return out_of_range("min_p", params.min_p, "in [0, 1]");
  }
  QUIRE_TRY_STATUS(check_penalties(params));
  QUIRE_TRY_STATUS(check_counts(params));
  QUIRE_TRY_STATUS(check_stops(params));
  return check_logit_bias(params);
}

}  // namespace quire::sampling
