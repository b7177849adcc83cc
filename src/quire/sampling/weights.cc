#include "quire/sampling/weights.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace quire::sampling {
namespace {

// A fixed count, so that the compiler uses vectors; every operation is elementwise, so that the
// result does not depend on whether it does.
constexpr std::size_t kLanes = 16;
constexpr float kLowest = -86.0F;  // below it weights are 0

// exp of [kLowest, 0] by range reduction to [-ln 2 / 2, ln 2 / 2] in two parts of ln 2 and the
// polynomial of Cephes' expf (Moshier).
inline float exp_reduced(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = (x * 1.44269504088896341F) + kRound;
  const float n = shifted - kRound;
  const float r = (x - (n * 0.693359375F)) - (n * -2.12194440e-4F);
  float p = 1.9875691500e-4F;
  p = (p * r) + 1.3981999507e-3F;
  p = (p * r) + 8.3334519073e-3F;
  p = (p * r) + 4.1665795894e-2F;
  p = (p * r) + 1.6666665459e-1F;
  p = (p * r) + 5.0000001201e-1F;
  p = (p * r * r) + r + 1.0F;
  // The integer stands in the low bits of `shifted`; times 2^n by adding it to the exponent.
  const auto power = std::bit_cast<std::uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + power);
}

inline void weigh_block(const float* logits, float peak, double scale, float* weights) {
  float x[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double exponent = static_cast<double>(logits[i] - peak) * scale;
    x[i] = static_cast<float>(exponent < -1000.0 ? -1000.0 : exponent);
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    const float clamped = x[i] < kLowest ? kLowest : x[i];
    const float weight = exp_reduced(clamped);
    weights[i] = x[i] < kLowest ? 0.0F : weight;
  }
}

}  // namespace

void softmax_weights(std::span<const float> logits, float peak, double temperature,
                     std::span<float> weights) {
  const double scale = std::min(1.0 / temperature, 1e300);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    weigh_block(logits.data() + i, peak, scale, weights.data() + i);
  }
  if (i < logits.size()) {
    float in[kLanes];
    float out[kLanes];
    std::fill(std::begin(in), std::end(in), peak);
    std::copy(logits.begin() + static_cast<std::ptrdiff_t>(i), logits.end(), in);
    weigh_block(in, peak, scale, out);
    std::copy_n(out, logits.size() - i, weights.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace quire::sampling
