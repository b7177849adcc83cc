// Oracle: std::exp in double precision, and every other set of registers.
#include "quire/sampling/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace quire::sampling {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Returns logits, none above 0, which is among them; also some far below and some that are never
// chosen.
std::vector<float> some_logits(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> logits(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float drawn = -static_cast<float>(random() % 100000) * 1e-3F;
    logits[i] = i % 17 == 3 ? kNever : i % 13 == 5 ? drawn * 1e30F : drawn;
  }
  logits[count / 2] = 0;
  return logits;
}

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits(values.size());
  std::ranges::transform(values, bits.begin(),
                         [](float value) { return std::bit_cast<std::uint32_t>(value); });
  return bits;
}

TEST(SoftmaxWeights, AreThoseOfADoublePrecisionExponential) {
  for (const double temperature : {1e-3, 0.3, 1.0, 7.0}) {
    const std::vector<float> logits = some_logits(1000, 1);
    std::vector<float> weights(logits.size());
    softmax_weights(logits, 0, temperature, weights);
    EXPECT_EQ(weights[500], 1);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double exponent = static_cast<double>(logits[i]) / temperature;
      const double expected = exponent < -86 ? 0 : std::exp(exponent);
      const double rounding = (4 - std::max(exponent, -86.0)) * 6e-8;  // of the exponent too
      EXPECT_NEAR(weights[i], expected, rounding * expected) << logits[i];
    }
  }
}

TEST(SoftmaxWeights, HaveTheSameBitsWithEverySetOfRegistersAndAlone) {
  const std::vector<WeighFunction> functions = weigh_functions();
  for (std::size_t count = 1; count < 300; ++count) {
    const std::vector<float> logits = some_logits(count, static_cast<std::uint32_t>(count));
    for (const double scale : {1.0, 1.25, 1e300}) {
      std::vector<float> expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        functions.front()(std::span(logits).subspan(i, 1), 0, scale,
                          std::span(expected).subspan(i, 1));
      }
      for (const WeighFunction weigh : functions) {
        std::vector<float> weights(count);
        weigh(logits, 0, scale, weights);
        ASSERT_EQ(bits_of(weights), bits_of(expected)) << count << " " << scale;
      }
    }
  }
}

}  // namespace
}  // namespace quire::sampling
