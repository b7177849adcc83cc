#include "quire/base/work_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "quire/result.h"

namespace quire::base {
namespace {

using testing::HasSubstr;

TEST(WorkMeter, FailsBeyondItsStepsAndNamesThem) {
  WorkMeter meter({.steps = 1000, .bytes = 0});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(meter.step());
  }
  EXPECT_TRUE(meter.status().ok());
  EXPECT_FALSE(meter.step());
  EXPECT_EQ(meter.status().error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(meter.status().error().message, HasSubstr("more than 1000 steps; shorten the text"));
  EXPECT_EQ(meter.steps_used(), 1001);
}

TEST(WorkMeter, FailsBeyondItsBytesAndStaysFailed) {
  WorkMeter meter({.steps = 1000, .bytes = 2048});
  EXPECT_TRUE(meter.write(2048));
  EXPECT_FALSE(meter.write(1));
  EXPECT_FALSE(meter.write(0));
  EXPECT_FALSE(meter.step());
  EXPECT_THAT(meter.status().error().message, HasSubstr("writes more than 2.0 KiB"));
}

TEST(WorkMeter, GrantsAddToTheLimits) {
  WorkMeter meter({.steps = 10, .bytes = 10});
  meter.grant({.steps = 1000, .bytes = 5});
  EXPECT_TRUE(meter.write(15));
  EXPECT_TRUE(meter.step(900));
  EXPECT_FALSE(meter.step(200));
}

TEST(WorkMeter, AsksItsCallerNowAndThenAndEndsWithCancelled) {
  int asked = 0;
  WorkMeter meter({.steps = 1 << 30, .bytes = 0}, [&] { return ++asked == 2; });
  while (meter.step(100)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(meter.status().error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace quire::base
