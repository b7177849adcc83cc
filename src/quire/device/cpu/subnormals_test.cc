#include "quire/device/cpu/subnormals.h"

#include <gtest/gtest.h>

#include <limits>

namespace quire::device {
namespace {

// At run time, by the thread's own setting.
float half_of(float x) {
  volatile float operand = x;
  return operand * 0.5f;
}

constexpr float kSmallestNormal = std::numeric_limits<float>::min();

TEST(FlushSubnormals, TheThreadsOwnSettingReturns) {
  ASSERT_GT(half_of(kSmallestNormal), 0.0f);
  {
    const FlushSubnormals outer;
    {
      const FlushSubnormals inner;
    }
#if defined(__x86_64__)
    EXPECT_EQ(half_of(kSmallestNormal), 0.0f);
#endif
  }
  EXPECT_GT(half_of(kSmallestNormal), 0.0f);
}

#if defined(__x86_64__)
TEST(FlushSubnormals, OperandsCountAsZeroAndNormalNumbersStay) {
  volatile float subnormal = kSmallestNormal / 2;
  const FlushSubnormals flush;
  EXPECT_EQ(subnormal * 4.0f, 0.0f);
  EXPECT_EQ(half_of(-4 * kSmallestNormal), -2 * kSmallestNormal);
}
#endif

}  // namespace
}  // namespace quire::device
