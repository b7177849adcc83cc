// The pace of steps, found from random ones whose times are known.
#include "quire/sched/step_pace.h"

#include <gtest/gtest.h>

#include <random>

namespace quire::sched {
namespace {

TEST(StepPace, IsFoundFromStepsOfAllKinds) {
  PaceMeter meter;
  const auto seconds = [](const StepWork& work) {
    return 0.002 + 1e-4 * work.rows + 3e-8 * work.pairs;
  };
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    const StepWork work =
        i % 3 == 0 ? work_of(random() % 30000, 1 + random() % 500) : work_of(random() % 3000, 1);
    meter.add(work, seconds(work) * (0.95 + 0.1 * double(random() % 100) / 100));
  }
  for (const StepWork& work : {work_of(0, 1), work_of(100, 200), work_of(20000, 100)}) {
    EXPECT_NEAR((meter.pace().fixed_seconds + meter.pace().seconds(work)) / seconds(work), 1, 0.1);
  }
}

TEST(StepPace, LatenessIsWhatOneLongStepOfAHundredExceeds) {
  PaceMeter meter;
  std::mt19937 random(5);
  std::normal_distribution<double> noise(1, 0.05);
  int late = 0;
  for (int i = 0; i < 3000; ++i) {
    const StepWork work = work_of(500, i % 3 == 0 ? 2 : 400 + i % 200);
    const double seconds = (1e-3 + 1e-4 * work.rows + 1e-8 * work.pairs) * noise(random);
    const StepPace& pace = meter.pace();
    const double most = (pace.fixed_seconds + pace.seconds(work)) * (1 + pace.lateness);
    late += i >= 1000 && work.rows > 2 && seconds > most ? 1 : 0;
    meter.add(work, seconds);
  }
  EXPECT_NEAR(meter.pace().lateness, 0.12, 0.03);
  EXPECT_LE(late, 40) << "of 1333 steps";
}

TEST(StepPace, RowsThatFitBecomeFewerBehindMoreTokens) {
  const StepPace pace{.row_seconds = 1e-4, .pair_seconds = 1e-8, .measured_rows = 4096};
  EXPECT_EQ(pace.rows_within(0.01, 0, 4096), 99);
  EXPECT_LT(pace.rows_within(0.01, 30000, 4096), 30);
  EXPECT_EQ(pace.rows_within(0.01, 0, 50), 50);
  EXPECT_EQ(pace.rows_within(0, 0, 50), 0);
  EXPECT_EQ((StepPace{}.rows_within(1, 0, 4096)), 16) << "nothing was measured yet";
}

}  // namespace
}  // namespace quire::sched
