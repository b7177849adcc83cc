#include <cmath>
#include <string_view>

#include "quire/base/str.h"
#include "quire/sampling.h"

namespace quire {
namespace {

constexpr double kMaxBias = 1e4;  // beyond any logit, far from overflow
constexpr std::size_t kMaxStops = 256;
constexpr std::int32_t kMaxLogprobs = 1000;

Error refuse(std::string_view field, std::string_view range, double value) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = base::str_cat(field, " must be ", range, ", not ", value)};
}

bool inside(double value, double low, double high) { return value >= low && value <= high; }

Status check_numbers(const SamplingParams& p) {
  constexpr double kMaxTemperature = 100;
  if (!inside(p.temperature, 0, kMaxTemperature) ||
      (p.temperature > 0 && p.temperature < 1e-4)) {  // its inverse would overflow the logits
    return refuse("temperature", "0 (greedy) or in [0.0001, 100]", p.temperature);
  }
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    return refuse("top_p", "in (0, 1]", p.top_p);
  }
  if (p.top_k < 0) {
    return refuse("top_k", "0 (off) or more", p.top_k);
  }
  if (!inside(p.min_p, 0, 1)) {
    return refuse("min_p", "in [0, 1]", p.min_p);
  }
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= kMaxBias)) {
    return refuse("repetition_penalty", "in (0, 10000]", p.repetition_penalty);
  }
  if (!inside(p.presence_penalty, -kMaxBias, kMaxBias)) {
    return refuse("presence_penalty", "in [-10000, 10000]", p.presence_penalty);
  }
  if (!inside(p.frequency_penalty, -kMaxBias, kMaxBias)) {
    return refuse("frequency_penalty", "in [-10000, 10000]", p.frequency_penalty);
  }
  return {};
}

Status check_counts(const SamplingParams& p) {
  if (p.max_tokens < 0) {
    return refuse("max_tokens", "0 or more", p.max_tokens);
  }
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens) {
    return refuse("min_tokens", base::str_cat("in [0, max_tokens = ", p.max_tokens, "]"),
                  p.min_tokens);
  }
  if (p.logprobs && (*p.logprobs < 0 || *p.logprobs > kMaxLogprobs)) {
    return refuse("logprobs", base::str_cat("in [0, ", kMaxLogprobs, "]"), *p.logprobs);
  }
  return {};
}

}  // namespace

Status SamplingParams::validate() const {
  QUIRE_TRY_STATUS(check_numbers(*this));
  QUIRE_TRY_STATUS(check_counts(*this));
  if (stop.size() > kMaxStops) {
    return refuse("the number of stop strings", base::str_cat("at most ", kMaxStops),
                  static_cast<double>(stop.size()));
  }
  for (const std::string& text : stop) {
    if (text.empty()) {
      return {ErrorCode::kInvalidArgument, "a stop string must not be empty"};
    }
  }
  for (const TokenId id : stop_token_ids) {
    if (id < 0) {
      return refuse("an id in stop_token_ids", "0 or more", id);
    }
  }
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0) {
      return refuse("an id in logit_bias", "0 or more", id);
    }
    if (!inside(bias, -kMaxBias, kMaxBias)) {
      return refuse(base::str_cat("logit_bias of token ", id), "in [-10000, 10000]", bias);
    }
  }
  return {};
}

}  // namespace quire
