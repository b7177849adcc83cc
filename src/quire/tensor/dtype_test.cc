// The 16-bit floats: exact both ways, nearest even, infinities and NaN kept.
#include "quire/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quire::tensor {
namespace {

bool is_nan_fp16(std::uint32_t bits) { return (bits & 0x7fffu) > 0x7c00u; }
bool is_nan_bf16(std::uint32_t bits) { return (bits & 0x7fffu) > 0x7f80u; }

TEST(DType, EveryFp16ValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = fp16_to_float(static_cast<std::uint16_t>(bits));
    if (is_nan_fp16(bits)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(is_nan_fp16(float_to_fp16(value))) << bits;
    } else {
      EXPECT_EQ(float_to_fp16(value), bits);
    }
  }
}

// Oracle: the definition sign * 2^(e - 15) * 1.fraction.
TEST(DType, Fp16ValuesFollowTheDefinition) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const double fraction = (bits & 0x3ffu) / 1024.0;
    const double expected =
        exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1.0 + fraction, exponent - 15);
    EXPECT_EQ(fp16_to_float(static_cast<std::uint16_t>(bits)), expected) << bits;
    EXPECT_EQ(fp16_to_float(static_cast<std::uint16_t>(bits | 0x8000u)), -expected) << bits;
  }
}

// Between neighbours a < b: just below the middle gives a, just above b, the middle the even one.
TEST(DType, Fp16RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double a = fp16_to_float(static_cast<std::uint16_t>(bits));
    const double b = fp16_to_float(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((a + b) / 2);  // exact: one more bit
    EXPECT_EQ(float_to_fp16(middle), bits + (bits & 1u));
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);  // rounds to infinity
  EXPECT_EQ(float_to_fp16(1e-30f), 0);
  EXPECT_EQ(float_to_fp16(-1e-30f), 0x8000);
}

TEST(DType, EveryBf16ValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    if (is_nan_bf16(bits)) {
      EXPECT_TRUE(is_nan_bf16(float_to_bf16(value))) << bits;
    } else {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80);  // half a unit above an even value
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82);  // half a unit above an odd value
  EXPECT_EQ(float_to_bf16(std::nextafter(1.00390625f, 2.0f)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds to infinity
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);  // signalling NaN
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(dtype_bytes(DType::kFloat32), 4);
  EXPECT_EQ(dtype_bytes(DType::kBFloat16), 2);
  EXPECT_STREQ(dtype_name(DType::kFloat16), "float16");
}

}  // namespace
}  // namespace quire::tensor
