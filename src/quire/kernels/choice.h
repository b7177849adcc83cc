// Choice decides the token of a row. LogitChange changes one logit of a row before that.
// TokenLogprob reports a log probability. All are plain, so that they can go to a device and back.
#pragma once

#include <cstdint>
#include <limits>

namespace quire::kernels {

// The way in which a row's token is chosen, by the rule of include/quire/sampling.h. `uniform` in
// [0, 1) decides.
struct Choice {
  double temperature = 0;  // 0: the most likely token
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;
  std::int32_t top_k = 0;   // 0: off
  std::int32_t wanted = 0;  // 0: the row's token is chosen elsewhere
  // Asks for log probabilities of the chosen token and of this many most likely ones; -1: of none.
  std::int32_t logprobs = -1;
};

inline constexpr std::int32_t kMostLogprobs = 1024;

// A token and its log probability by the softmax of the unchanged logits.
struct TokenLogprob {
  std::int32_t id = -1;
  float logprob = 0;  // natural
};

// Changes one logit of a row, in the order of the fields.
struct LogitChange {
  std::int32_t row = 0;
  std::int32_t id = 0;
  double bias = 0;             // number to add
  double repetition = 1;       // divides a positive logit, multiplies another
  double penalty = 0;          // number to subtract
  std::int32_t forbidden = 0;  // 1: -inf
};

// Returns the value as a logit. A value below the range of float forbids the token; a value above
// it makes the token the most likely one.
[[nodiscard]] constexpr float to_logit(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  if (value < -kMax) {
    return -std::numeric_limits<float>::infinity();
  }
  return static_cast<float>(value > kMax ? kMax : value);
}

// Returns the changed logit, with the same bits on the CPU and on a device.
[[nodiscard]] constexpr float changed_logit(float logit, const LogitChange& change) {
  const double biased = to_logit(logit + change.bias);
  const double repeated =
      to_logit(biased > 0 ? biased / change.repetition : biased * change.repetition);
  return change.forbidden != 0 ? -std::numeric_limits<float>::infinity()
                               : to_logit(repeated - change.penalty);
}

}  // namespace quire::kernels
