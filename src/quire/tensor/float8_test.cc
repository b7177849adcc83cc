// e4m3. Oracle: the 127 magnitudes in double precision.
#include "quire/tensor/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace quire::tensor {
namespace {

double value_of(int magnitude) {
  const int exponent = magnitude >> 3, fraction = magnitude & 7;
  return exponent == 0 ? fraction * 0x1p-9 : std::ldexp(1 + fraction / 8.0, exponent - 7);
}

TEST(Float8, EveryCodeIsItsValueAndComesBack) {
  for (int magnitude = 0; magnitude < 0x7f; ++magnitude) {
    const auto code = static_cast<std::uint8_t>(magnitude);
    const auto negative = static_cast<std::uint8_t>(magnitude | 0x80);
    EXPECT_EQ(e4m3_to_float(code), value_of(magnitude));
    EXPECT_EQ(e4m3_to_float(negative), -value_of(magnitude));
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(code)), code);
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(negative)), negative);
  }
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

TEST(Float8, BetweenTwoValuesTheNearerAndInTheMiddleTheEvenOneIsTaken) {
  for (int magnitude = 0; magnitude < 0x7e; ++magnitude) {
    const double low = value_of(magnitude), high = value_of(magnitude + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), magnitude);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 1e9f)), magnitude + 1);
    EXPECT_EQ(float_to_e4m3(middle), magnitude + magnitude % 2);
  }
}

TEST(Float8, WhatIsLargerThanAllBecomesTheLargest) {
  for (const float large : {449.0f, 1e6f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(e4m3_to_float(float_to_e4m3(large)), kLargestE4m3);
    EXPECT_EQ(e4m3_to_float(float_to_e4m3(-large)), -kLargestE4m3);
  }
}

}  // namespace
}  // namespace quire::tensor
