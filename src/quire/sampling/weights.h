// Unnormalised probabilities of logits: exp((logit - peak) / temperature).
#pragma once

#include <span>
#include <vector>

#include "quire/types.h"

namespace quire::sampling {

// Sets weights[i] = exp((logits[i] - peak) / temperature), with the exponent rounded to fp32, to a
// few units in the last place. Is 0 below exp(-86), and exactly 1 where the logit is the peak.
// Element i depends on logits[i] alone. `logits` and `weights` have the same size and may not
// overlap. Precondition: peak is finite and no logit is above it; temperature > 0.
void softmax_weights(std::span<const float> logits, float peak, double temperature,
                     std::span<float> weights);

// Returns the probability of one id: of the unmodified softmax, in double.
[[nodiscard]] double probability_of(std::span<const float> logits, TokenId id);

// Functions of softmax_weights for each set of registers that this machine has, the widest last.
// They agree bit for bit. `scale` is 1 / temperature, finite.
using WeighFunction = void (*)(std::span<const float> logits, float peak, double scale,
                               std::span<float> weights);
[[nodiscard]] std::vector<WeighFunction> weigh_functions();

}  // namespace quire::sampling
