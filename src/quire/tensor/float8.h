// 8-bit floats e4m3 (Micikevicius et al., "FP8 Formats for Deep Learning"): a sign, four bits of
// exponent, three behind the point. The largest is 448; there is no infinity, and 0x7f is a NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace quire::tensor {

inline constexpr float kLargestE4m3 = 448.0f;

// Returns the nearest e4m3, ties to even. Larger numbers become the largest.
[[nodiscard]] constexpr std::uint8_t float_to_e4m3(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffffU;
  const auto sign = static_cast<std::uint8_t>(bits >> 24U & 0x80U);
  if (magnitude > 0x7f800000U) {
    return sign | 0x7fU;
  }
  constexpr std::uint32_t kLeastNormal = (127U - 6) << 23U;
  std::uint32_t code = 0;
  if (magnitude < kLeastNormal) {
    // Adding 2^14 leaves steps of 2^-9 behind the point.
    constexpr float kPower = 16384.0f;
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kPower) -
           std::bit_cast<std::uint32_t>(kPower);
  } else {
    const std::uint32_t rounded = magnitude + 0x7ffffU + (magnitude >> 20U & 1U);
    code = (rounded >> 20U) - (120U << 3U);
  }
  return static_cast<std::uint8_t>(sign | (code < 0x7eU ? code : 0x7eU));
}

[[nodiscard]] constexpr float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7fU, sign = static_cast<std::uint32_t>(bits & 0x80U)
                                                       << 24U;
  if (magnitude == 0x7fU) {
    return std::bit_cast<float>(sign | 0x7fc00000U);
  }
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign == 0 ? value : -value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20U) + (120U << 23U)));
}

}  // namespace quire::tensor
