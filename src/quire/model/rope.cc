#include "quire/model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

#include "quire/base/str.h"
#include "quire/kernels/rotary.h"
#include "quire/result.h"

namespace quire::model {
namespace {

constexpr double kStill = 1e29;
constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Returns theta^(-2i / rotary_dim): the frequencies before any scaling.
std::vector<double> plain_frequencies(const RopeSpec& spec) {
  std::vector<double> frequencies(static_cast<std::size_t>(spec.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(spec.theta, -2.0 * static_cast<double>(i) / spec.rotary_dim);
  }
  return frequencies;
}

Result<double> positive(const std::optional<double>& value, const char* name) {
  if (!value) {
    return {ErrorCode::kInvalidArgument, base::str_cat("rope scaling lacks \"", name, "\"")};
  }
  if (!std::isfinite(*value) || *value <= 0.0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("rope scaling has \"", name, "\" = ", *value, "; must be above 0")};
  }
  return *value;
}

// Raises the number of positions to `factor` times the original length.
void stretch(const RopeSpec& spec, double factor, Rope& rope) {
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  const double original = spec.original_context_length.value_or(spec.context_length);
  const double stretched = std::min(std::floor(original * factor), kMost);
  rope.context_length = std::max(rope.context_length, static_cast<std::int32_t>(stretched));
}

Status scale_linear(const RopeSpec& spec, Rope& rope) {
  QUIRE_TRY(const double factor, positive(spec.factor, "factor"));
  for (double& frequency : rope.rotary.inverse_frequencies) {
    frequency /= factor;
  }
  stretch(spec, factor, rope);
  return {};
}

// Scales as Llama 3.1: long waves are stretched by `factor`, short ones kept, those between mixed.
// Its length is the one of the file, below `factor` times the original one, unless that was never
// edited.
Status scale_llama3(const RopeSpec& spec, Rope& rope) {
  QUIRE_TRY(const double factor, positive(spec.factor, "factor"));
  QUIRE_TRY(const double low, positive(spec.low_freq_factor, "low_freq_factor"));
  QUIRE_TRY(const double high, positive(spec.high_freq_factor, "high_freq_factor"));
  QUIRE_TRY(const double original,
            positive(spec.original_context_length, "original_max_position_embeddings"));
  if (high <= low) {
    return {ErrorCode::kInvalidArgument, base::str_cat("rope scaling has high_freq_factor = ", high,
                                                       ", not above low_freq_factor = ", low)};
  }
  for (double& frequency : rope.rotary.inverse_frequencies) {
    const double waves = original * frequency / kTwoPi;  // waves that fit into the original length
    const double keep = std::clamp((waves - low) / (high - low), 0.0, 1.0);
    frequency = (1.0 - keep) * frequency / factor + keep * frequency;
  }
  if (spec.context_length <= original) {
    stretch(spec, factor, rope);
  }
  return {};
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Scales as YaRN (Peng et al. 2023): frequencies between two corrections are mixed by a linear
// ramp.
Status scale_yarn(const RopeSpec& spec, Rope& rope) {
  QUIRE_TRY(const double factor, positive(spec.factor, "factor"));
  QUIRE_TRY(const double original,
            positive(spec.original_context_length, "original_max_position_embeddings"));
  QUIRE_TRY(const double beta_fast, positive(spec.beta_fast, "beta_fast"));
  QUIRE_TRY(const double beta_slow, positive(spec.beta_slow, "beta_slow"));
  const auto correction = [&](double rotations) {
    return spec.rotary_dim * std::log(original / (rotations * kTwoPi)) /
           (2.0 * std::log(spec.theta));
  };
  double low = correction(beta_fast);
  double high = correction(beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(spec.rotary_dim - 1));
  if (low == high) {
    high += 0.001;  // as the reference does: a step instead of a ramp
  }
  auto& frequencies = rope.rotary.inverse_frequencies;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double& frequency = frequencies[i];
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency = frequency / factor * ramp + frequency * (1.0 - ramp);
  }
  const bool has_mscales = spec.mscale != 0.0 && spec.mscale_all_dim != 0.0;
  rope.rotary.scale = spec.attention_factor.value_or(
      has_mscales ? yarn_mscale(factor, spec.mscale) / yarn_mscale(factor, spec.mscale_all_dim)
                  : yarn_mscale(factor, 1.0));
  stretch(spec, factor, rope);
  return {};
}

// Scales as Longrope (Ding et al. 2024), with the short factors.
Status scale_longrope(const RopeSpec& spec, Rope& rope) {
  QUIRE_TRY(const double original,
            positive(spec.original_context_length, "original_max_position_embeddings"));
  auto& frequencies = rope.rotary.inverse_frequencies;
  if (spec.short_factor.size() != frequencies.size() ||
      spec.long_factor.size() != frequencies.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("longrope has ", spec.short_factor.size(), " short and ",
                          spec.long_factor.size(), " long factors for ", frequencies.size(),
                          " frequencies")};
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    QUIRE_TRY(const double divisor, positive(spec.short_factor[i], "short_factor"));
    frequencies[i] /= divisor;
  }
  const double factor = spec.factor.value_or(spec.context_length / original);
  rope.rotary.scale = spec.attention_factor.value_or(
      factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original)));
  if (spec.short_factor != spec.long_factor && original < spec.context_length) {
    rope.context_length = static_cast<std::int32_t>(original);
  }
  return {};
}

// Turns the first share of the frequencies, of a head as it is. The others stand still.
Status scale_proportional(const RopeSpec& spec, Rope& rope) {
  const double factor = spec.factor.value_or(1.0);
  if (!(spec.turned >= 0.0 && spec.turned <= 1.0) || !(factor > 0.0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("rope scaling has \"partial_rotary_factor\" = ", spec.turned,
                          " and \"factor\" = ", factor, "; must be in [0, 1] and above 0")};
  }
  const auto turned = static_cast<std::size_t>(spec.turned * spec.rotary_dim / 2.0);
  auto& frequencies = rope.rotary.inverse_frequencies;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = i < turned ? frequencies[i] / factor : 0.0;
  }
  return {};
}

Status divide_each(const RopeSpec& spec, kernels::RotaryConfig& rotary) {
  if (spec.divisors.size() != rotary.inverse_frequencies.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("rope_freqs holds ", spec.divisors.size(), " values for ",
                          rotary.inverse_frequencies.size(), " frequencies")};
  }
  for (std::size_t i = 0; i < spec.divisors.size(); ++i) {
    QUIRE_TRY(const double divisor, positive(spec.divisors[i], "rope_freqs"));
    // So large a divisor stands for a frequency of 0.
    rotary.inverse_frequencies[i] =
        divisor >= kStill ? 0.0 : rotary.inverse_frequencies[i] / divisor;
  }
  return {};
}

Status apply_scaling(const RopeSpec& spec, Rope& rope) {
  if (spec.type == "default") {
    return {};
  }
  if (spec.type == "linear") {
    return scale_linear(spec, rope);
  }
  if (spec.type == "llama3") {
    return scale_llama3(spec, rope);
  }
  if (spec.type == "yarn") {
    return scale_yarn(spec, rope);
  }
  if (spec.type == "longrope") {
    return scale_longrope(spec, rope);
  }
  if (spec.type == "proportional") {
    return scale_proportional(spec, rope);
  }
  return {
      ErrorCode::kUnsupported,
      base::str_cat("rope type ", base::quoted(spec.type),
                    spec.type == "dynamic"
                        ? " changes its frequencies with the length, so no stored key stays valid"
                        : " is not implemented",
                    "; known: default, linear, llama3, yarn, longrope, proportional")};
}

}  // namespace

Result<Rope> make_rope(const RopeSpec& spec) {
  constexpr double kMaxTheta = 1e15;
  if (!(spec.theta > 1.0 && spec.theta <= kMaxTheta)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(spec.theta_name, " is ", spec.theta, "; must be above 1 and at most ",
                          kMaxTheta)};
  }
  if (spec.rotary_dim < 2 || spec.rotary_dim % 2 != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("rope turns ", spec.rotary_dim,
                          " values of a head; must be even and 2 or more")};
  }
  Rope rope{.rotary = {.inverse_frequencies = plain_frequencies(spec)},
            .context_length = spec.context_length};
  QUIRE_TRY_STATUS(apply_scaling(spec, rope));
  if (!spec.divisors.empty()) {
    QUIRE_TRY_STATUS(divide_each(spec, rope.rotary));
  }
  if (!std::isfinite(rope.rotary.scale) || rope.rotary.scale <= 0.0) {
    return {ErrorCode::kInvalidArgument, base::str_cat("rope scaling gives an attention factor of ",
                                                       rope.rotary.scale, "; must be above 0")};
  }
  return rope;
}

}  // namespace quire::model
