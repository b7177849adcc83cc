#include "quire/diagnostics/warmed.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "quire/result.h"

namespace quire::diagnostics {
namespace {

// The first sample of a length on an H200 recorded a graph: 12.6 ms, where others took 7.5.
TEST(Warmed, LeavesOutTheFirstCallAndKeepsAllOthersInOrder) {
  const std::vector<double> times = {12.6, 7.5, 7.4, 7.6};
  std::size_t calls = 0;
  const auto samples = warmed(3, [&]() -> Result<double> { return times[calls++]; }).value();
  EXPECT_EQ(samples, (std::vector<double>{7.5, 7.4, 7.6}));
  EXPECT_EQ(calls, times.size());
  EXPECT_EQ(median(samples), 7.5);
}

TEST(Warmed, ReturnsTheFirstErrorAndCallsNoFurther) {
  for (const int failing : {0, 1}) {
    int calls = 0;
    const auto samples = warmed(5, [&]() -> Result<double> {
      if (calls++ == failing) {
        return {ErrorCode::kIo, "no file"};
      }
      return 1.0;
    });
    EXPECT_EQ(samples.error().code, ErrorCode::kIo);
    EXPECT_EQ(calls, failing + 1);
  }
}

TEST(Median, IsOfTheFieldThatIsAskedFor) {
  struct Times {
    double step = 0;
    double overhead = 0;
  };
  const std::vector<Times> times = {{3, 1}, {1, 2}, {2, 9}};
  EXPECT_EQ(median(times, &Times::step), 2);
  EXPECT_EQ(median(times, &Times::overhead), 2);
}

}  // namespace
}  // namespace quire::diagnostics
