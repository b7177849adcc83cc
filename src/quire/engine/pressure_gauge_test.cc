#include "quire/engine/pressure_gauge.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "quire/engine/active_request.h"
#include "quire/engine/plan_log.h"
#include "quire/kv/types.h"
#include "quire/sched/types.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

kv::LedgerCounts blocks(std::int32_t free, std::int32_t cached) {
  return {.blocks_total = 100,
          .blocks_free = free,
          .blocks_cached = cached,
          .blocks_in_use = 100 - free - cached};
}

TEST(PressureLevel, IsLowWhileNobodyWaitsOrMoreThanHalfOfTheBlocksCanBeHad) {
  EXPECT_EQ(pressure_level(0, 0), PressureLevel::kLow);
  EXPECT_EQ(pressure_level(0.51, 9), PressureLevel::kLow);
  EXPECT_EQ(pressure_level(0.5, 1), PressureLevel::kMedium);
  EXPECT_EQ(pressure_level(0.2, 1), PressureLevel::kHigh);
  EXPECT_EQ(pressure_level(0.05, 1), PressureLevel::kHigh);
  EXPECT_EQ(pressure_level(0.049, 1), PressureLevel::kCritical);
}

TEST(PressureGauge, TellsChangesOfTheLevelAlone) {
  PressureGauge gauge;
  const Clock::time_point now(std::chrono::seconds(1000));
  EXPECT_FALSE(gauge.update(blocks(2, 1), 0, 0, now));
  EXPECT_TRUE(gauge.update(blocks(2, 1), 3, 0, now));
  EXPECT_FALSE(gauge.update(blocks(1, 1), 4, 0, now));
  EXPECT_EQ(gauge.at(now).level, PressureLevel::kCritical);
  EXPECT_DOUBLE_EQ(gauge.at(now).blocks_free_share, 0.02);
  EXPECT_EQ(gauge.at(now).waiting, 4);
  EXPECT_TRUE(gauge.update(blocks(30, 40), 4, 0, now)) << "cached blocks can be had, too";
  EXPECT_EQ(gauge.at(now).level, PressureLevel::kLow);
}

TEST(PressureGauge, IsHighWhileTheLastStepPreemptedThoughTheVictimsBlocksAreFreeAgain) {
  PressureGauge gauge;
  const Clock::time_point now(std::chrono::seconds(1000));
  gauge.update(blocks(40, 0), 1, 0, now);
  EXPECT_EQ(gauge.at(now).level, PressureLevel::kMedium);
  EXPECT_TRUE(gauge.update(blocks(40, 0), 1, 1, now));
  EXPECT_EQ(gauge.at(now).level, PressureLevel::kHigh);
  EXPECT_TRUE(gauge.update(blocks(40, 0), 1, 1, now));
  EXPECT_EQ(gauge.at(now).level, PressureLevel::kMedium);
  gauge.update(blocks(60, 0), 1, 2, now);
  EXPECT_EQ(gauge.at(now).level, PressureLevel::kLow) << "more than half of the blocks are there";
}

TEST(PressureGauge, CountsThePreemptionsOfTheLastMinute) {
  PressureGauge gauge;
  const auto at = [](int second) { return Clock::time_point(std::chrono::seconds(second)); };
  gauge.update(blocks(1, 0), 1, 3, at(1000));
  gauge.update(blocks(1, 0), 1, 5, at(1030));
  EXPECT_EQ(gauge.at(at(1059)).preemptions_per_minute, 5);
  EXPECT_EQ(gauge.at(at(1060)).preemptions_per_minute, 2);
  gauge.update(blocks(1, 0), 1, 6, at(1060));
  EXPECT_EQ(gauge.at(at(1060)).preemptions_per_minute, 3);
  EXPECT_EQ(gauge.at(at(5000)).preemptions_per_minute, 0);
}

TEST(PlanLog, JoinsWhatPrecedesAStepAndKeepsTheLastDecisions) {
  PlanLog log;
  log.note({.preempt = {RequestId{3}}, .make_way = {RequestId{4}}});
  log.note({.admit = {RequestId{1}, RequestId{2}}});
  log.add(1, 70, 0.25);
  for (std::int64_t step = 2; step <= 5000; ++step) {
    log.add(step, 2, 0.001);
  }
  EXPECT_EQ(log.last(9999).size(), PlanLog::kKept);
  EXPECT_EQ(log.last(9999).front().step, 5000 - 4096 + 1);
  const std::vector<PlanDecision> last = log.last(2);
  ASSERT_EQ(last.size(), 2U);
  EXPECT_EQ(last[0].step, 4999);
  EXPECT_EQ(last[1].rows, 2);
  EXPECT_TRUE(last[1].admitted.empty());
  EXPECT_DOUBLE_EQ(last[1].ms, 1);
}

TEST(PlanLog, SaysWhyARequestWasPreempted) {
  PlanLog log;
  log.note({.preempt = {RequestId{3}}, .make_way = {RequestId{4}}});
  log.note({.admit = {RequestId{1}, RequestId{2}}});
  log.add(1, 70, 0.25);
  const PlanDecision decision = log.last(1).at(0);
  EXPECT_EQ(decision.admitted, (std::vector<RequestId>{RequestId{1}, RequestId{2}}));
  ASSERT_EQ(decision.preempted.size(), 2U);
  EXPECT_EQ(decision.preempted[0].request, RequestId{3});
  EXPECT_EQ(decision.preempted[0].reason, "blocks");
  EXPECT_EQ(decision.preempted[1].reason, "priority");
}

}  // namespace
}  // namespace quire::engine
