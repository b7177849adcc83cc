#include "quire/sampling/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "quire/types.h"

namespace quire::sampling {
namespace {

// A fixed count, so that the compiler uses vectors. Every operation is elementwise, so that the
// result does not depend on whether it does, nor on which (expressions are not contracted).
constexpr std::size_t kLanes = 64;
constexpr float kLowest = -86.0F;  // below it weights are 0

// Returns all ones where x is below `limit`, else 0; both negative, or x zero. The bits of negative
// numbers grow as the numbers fall. Compared as integers of their size they need no branch, which
// keeps compilers from using vectors.
template <class Bits, class Float>
[[gnu::always_inline]] inline Bits ones_below(Float x, Float limit) {
  return Bits{0} - Bits{std::bit_cast<Bits>(x) > std::bit_cast<Bits>(limit)};
}

template <class Bits, class Float>
[[gnu::always_inline]] inline Float at_least(Float x, Float limit) {
  const Bits below = ones_below<Bits>(x, limit);
  return std::bit_cast<Float>((std::bit_cast<Bits>(x) & ~below) |
                              (std::bit_cast<Bits>(limit) & below));
}

// Returns exp(x) for x in [kLowest, 0]. Reduces the range to [-ln 2 / 2, ln 2 / 2] in two parts of
// ln 2. Uses the polynomial of Cephes' expf (Moshier).
[[gnu::always_inline]] inline float exp_reduced(float x) {
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

[[gnu::always_inline]] inline void weigh_block(const float* logits, float peak, double scale,
                                               float* weights) {
  float x[kLanes];
  std::uint32_t low[kLanes];  // all ones where the weight is 0
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double exponent = static_cast<double>(logits[i] - peak) * scale;
    x[i] = static_cast<float>(at_least<std::uint64_t>(exponent, -1000.0));
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    low[i] = ones_below<std::uint32_t>(x[i], kLowest);
    weights[i] = exp_reduced(at_least<std::uint32_t>(x[i], kLowest));
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    weights[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(weights[i]) & ~low[i]);
  }
}

[[gnu::always_inline]] inline void weigh(std::span<const float> logits, float peak, double scale,
                                         std::span<float> weights) {
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

#if defined(__x86_64__)
// Computes weigh() with registers of 256 bits; the next function with those of 512 bits.
[[gnu::target("avx2")]] void weigh_avx2(std::span<const float> logits, float peak, double scale,
                                        std::span<float> weights) {
  weigh(logits, peak, scale, weights);
}

[[gnu::target("avx512f,avx512dq,avx512vl")]] void weigh_avx512(std::span<const float> logits,
                                                               float peak, double scale,
                                                               std::span<float> weights) {
  weigh(logits, peak, scale, weights);
}
#endif

}  // namespace

double probability_of(std::span<const float> logits, TokenId id) {
  const double own = logits[static_cast<std::size_t>(id)];
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - own);
  }
  return 1 / sum;
}

std::vector<WeighFunction> weigh_functions() {
  std::vector<WeighFunction> functions = {weigh};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    functions.push_back(weigh_avx2);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    functions.push_back(weigh_avx512);
  }
#endif
  return functions;
}

void softmax_weights(std::span<const float> logits, float peak, double temperature,
                     std::span<float> weights) {
  static const WeighFunction widest = weigh_functions().back();
  widest(logits, peak, std::min(1.0 / temperature, 1e300), weights);
}

}  // namespace quire::sampling
