// Unnormalised probabilities of logits: exp((logit - peak) / temperature).
#pragma once

#include <span>

namespace quire::sampling {

// weights[i] = exp((logits[i] - peak) / temperature), to a few units in the last place; 0 where
// that is below 2^-125, exactly 1 where the logit is the peak. Element i depends on logits[i]
// alone. `logits` and `weights` have the same size and may not overlap. Precondition: peak is
// finite and no logit is above it; temperature > 0.
void softmax_weights(std::span<const float> logits, float peak, double temperature,
                     std::span<float> weights);

}  // namespace quire::sampling
