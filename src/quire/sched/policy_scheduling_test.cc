// The scheduler under each policy: ranks, waiting requests and the bound on gaps.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/fake_engine.h"
#include "quire/sched/policy.h"
#include "quire/sched/types.h"

namespace quire::sched {
namespace {

// Returns the ids in the order in which they end.
std::vector<std::uint64_t> order_of_ends(FakeEngine& engine) {
  std::vector<std::uint64_t> order;
  while (!engine.running.empty()) {
    const auto before = engine.finished;
    EXPECT_TRUE(engine.step().ok());
    engine.wait(0.001);
    for (const auto& [id, output] : engine.finished) {
      if (!before.contains(id)) {
        order.push_back(id);
      }
    }
  }
  return order;
}

std::string shown_plan(const StepPlan& plan) {
  std::string text;
  for (const RequestId id : plan.preempt) {
    text += base::str_cat("preempt ", id.value, " ");
  }
  for (const RequestId id : plan.make_way) {
    text += base::str_cat("make way ", id.value, " ");
  }
  for (const RequestId id : plan.admit) {
    text += base::str_cat("admit ", id.value, " ");
  }
  for (const PlannedRun& run : plan.runs) {
    text += base::str_cat(run.request.value, ":", run.first, "+", run.count, " ");
  }
  return text;
}

std::string step_shown(FakeEngine& engine) {
  const Result<StepPlan> plan = engine.step();
  EXPECT_TRUE(plan.ok());
  EXPECT_TRUE(engine.ledger.check().ok());
  return plan.ok() ? shown_plan(*plan) : plan.error().message;
}

Tokens tokens(std::int32_t count, TokenId first) {
  Tokens made(static_cast<std::size_t>(count));
  std::iota(made.begin(), made.end(), first);
  return made;
}

TEST(PriorityScheduling, AHigherOneTakesTheBlocksOfALowerOneAndBothEndUnchanged) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false},
                    {.policy = PolicyKind::kPriority});
  ASSERT_TRUE(engine.submit(1, tokens(4, 0), 3).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+4 ");
  ASSERT_TRUE(engine.submit(2, tokens(6, 50), 2, true, {.priority = 1}).ok());
  EXPECT_EQ(step_shown(engine), "make way 1 ");
  EXPECT_EQ(step_shown(engine), "admit 2 2:0+6 ");
  EXPECT_EQ(step_shown(engine), "2:6+1 ");
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+5 ");
  EXPECT_EQ(step_shown(engine), "1:5+1 ");
  EXPECT_EQ(engine.finished.at(1), run_alone(tokens(4, 0), 3, 0));
  EXPECT_EQ(engine.finished.at(2), run_alone(tokens(6, 50), 2, 0));
}

// Returns whether the second request joins the first one at once, which leaves `free` of 64 blocks.
// Oracle: the rule of README, S6, in numbers.
bool joins(std::int32_t free, std::int32_t blocks) {
  FakeEngine engine({.num_blocks = 64, .block_tokens = 2, .prefix_cache = false}, {});
  EXPECT_TRUE(engine.submit(1, tokens(2 * (64 - free), 0), 1).ok());
  EXPECT_TRUE(engine.submit(2, tokens(2 * blocks, 500), 1).ok());
  EXPECT_EQ(engine.scheduler.num_without_room(),
            free < blocks || (free <= 32 && free - blocks < 2));
  const StepPlan plan = engine.scheduler.plan();
  EXPECT_EQ(plan.slowed, plan.admit.size() == 1 && blocks <= free);
  return plan.admit.size() == 2;
}

TEST(SlowAdmission, OneBlockIn32StaysForThoseThatRunOnceHalfAreTaken) {
  EXPECT_TRUE(joins(33, 33)) << "more than half can be had";
  EXPECT_FALSE(joins(32, 32));
  EXPECT_FALSE(joins(32, 31));
  EXPECT_TRUE(joins(32, 30));
  EXPECT_FALSE(joins(5, 6)) << "there is no room";
  EXPECT_FALSE(joins(2, 1));
  EXPECT_TRUE(joins(3, 1));
}

TEST(SlowAdmission, WhoWaitsRunsAloneInAllBlocks) {
  FakeEngine engine({.num_blocks = 64, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(engine.submit(1, tokens(64, 0), 3).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+64 ");
  ASSERT_TRUE(engine.submit(2, tokens(128, 500), 1).ok());
  EXPECT_EQ(step_shown(engine), "1:64+1 ");
  EXPECT_EQ(step_shown(engine), "1:65+1 ");
  EXPECT_EQ(step_shown(engine), "admit 2 2:0+128 ");
  EXPECT_EQ(engine.finished.at(2), run_alone(tokens(128, 500), 1, 0));
}

TEST(SlowAdmission, AHigherPriorityTakesNoBlocksThatWouldNotAdmitIt) {
  FakeEngine engine({.num_blocks = 64, .block_tokens = 2, .prefix_cache = false},
                    {.policy = PolicyKind::kPriority});
  ASSERT_TRUE(engine.submit(1, tokens(80, 0), 9, true, {.priority = 1}).ok());
  ASSERT_TRUE(engine.submit(2, tokens(32, 300), 9).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 admit 2 1:0+80 2:0+32 ");
  ASSERT_TRUE(engine.submit(3, tokens(46, 500), 1, true, {.priority = 1}).ok());
  EXPECT_EQ(step_shown(engine), "1:80+1 2:32+1 ") << "23 of the 23 blocks without 2 are too many";
  ASSERT_TRUE(engine.submit(4, tokens(40, 700), 1, true, {.priority = 2}).ok());
  EXPECT_EQ(step_shown(engine), "make way 2 1:81+1 ");
  EXPECT_EQ(step_shown(engine), "admit 4 1:82+1 4:0+40 ");
}

TEST(PriorityScheduling, AnEqualOneAndOneForWhichItWouldNotDoPreemptNobody) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false},
                    {.policy = PolicyKind::kPriority});
  ASSERT_TRUE(engine.submit(1, tokens(3, 0), 3, true, {.priority = 1}).ok());
  ASSERT_TRUE(engine.submit(2, tokens(2, 30), 3).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 admit 2 1:0+3 2:0+2 ");
  ASSERT_TRUE(engine.submit(3, tokens(6, 50), 1, true, {.priority = 1}).ok());
  EXPECT_EQ(step_shown(engine), "1:3+1 2:2+1 ") << "without 2 there would be 2 of 3 blocks";
}

TEST(PriorityScheduling, ShortageOfBlocksAloneTakesTheLowestPriorityFirst) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false},
                    {.policy = PolicyKind::kPriority});
  ASSERT_TRUE(engine.submit(1, tokens(3, 0), 4).ok());
  ASSERT_TRUE(engine.submit(2, tokens(3, 50), 4, true, {.priority = 1}).ok());
  EXPECT_EQ(step_shown(engine), "admit 2 admit 1 2:0+3 1:0+3 ");
  EXPECT_EQ(step_shown(engine), "2:3+1 1:3+1 ");
  EXPECT_EQ(step_shown(engine), "preempt 1 2:4+1 ");
}

TEST(PriorityScheduling, AFullHouseWithBlocksToSpareLetsAHigherOneWait) {
  FakeEngine engine({.num_blocks = 40, .block_tokens = 2},
                    {.max_running = 1, .policy = PolicyKind::kPriority});
  ASSERT_TRUE(engine.submit(1, tokens(3, 0), 3).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+3 ");
  ASSERT_TRUE(engine.submit(2, tokens(3, 50), 1, true, {.priority = 9}).ok());
  EXPECT_EQ(step_shown(engine), "1:3+1 ");
  EXPECT_EQ(step_shown(engine), "1:4+1 ");
  EXPECT_EQ(step_shown(engine), "admit 2 2:0+3 ");
}

TEST(PriorityScheduling, AHigherPromptTakesTheRowsOfALowerOneThatIsBeingComputed) {
  FakeEngine engine({.num_blocks = 40, .block_tokens = 2},
                    {.max_batch_tokens = 8, .policy = PolicyKind::kPriority});
  ASSERT_TRUE(engine.submit(1, tokens(30, 0), 1).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+8 ");
  ASSERT_TRUE(engine.submit(2, tokens(9, 50), 1, true, {.priority = 1}).ok());
  EXPECT_EQ(step_shown(engine), "admit 2 1:8+1 2:0+7 ");
  EXPECT_EQ(step_shown(engine), "2:7+2 1:9+6 ");
  EXPECT_EQ(engine.finished.at(2), run_alone(tokens(9, 50), 1, 0));
}

TEST(PriorityScheduling, AgeRaisesThePriority) {
  FakeEngine engine({.num_blocks = 40, .block_tokens = 2},
                    {.max_running = 1, .policy = PolicyKind::kPriority, .aging_seconds = 10});
  ASSERT_TRUE(engine.submit(1, tokens(3, 0), 1).ok());
  engine.wait(21);
  ASSERT_TRUE(engine.submit(2, tokens(3, 50), 1, true, {.priority = 3}).ok());
  ASSERT_TRUE(engine.submit(3, tokens(3, 90), 1, true, {.priority = 2}).ok());
  EXPECT_EQ(order_of_ends(engine), (std::vector<std::uint64_t>{2, 1, 3}));
}

TEST(ShortestScheduling, LeastWorkGoesFirst) {
  FakeEngine engine({.num_blocks = 400, .block_tokens = 2},
                    {.max_running = 1, .policy = PolicyKind::kShortest});
  ASSERT_TRUE(engine.submit(1, tokens(20, 0), 2).ok());
  ASSERT_TRUE(engine.submit(2, tokens(4, 50), 9).ok());
  ASSERT_TRUE(engine.submit(3, tokens(4, 90), 3).ok());
  EXPECT_EQ(order_of_ends(engine), (std::vector<std::uint64_t>{3, 2, 1}));
}

TEST(ShortestScheduling, CachedTokensAreNoWork) {
  FakeEngine engine({.num_blocks = 400, .block_tokens = 2},
                    {.max_running = 1, .policy = PolicyKind::kShortest});
  ASSERT_TRUE(engine.submit(1, tokens(20, 0), 1).ok());
  EXPECT_EQ(order_of_ends(engine), std::vector<std::uint64_t>{1});
  ASSERT_TRUE(engine.submit(2, tokens(10, 50), 1).ok());
  ASSERT_TRUE(engine.submit(3, tokens(21, 0), 1).ok());
  EXPECT_EQ(order_of_ends(engine), (std::vector<std::uint64_t>{3, 2}));
}

TEST(FairScheduling, TenantsTakeTurnsWhoeverAskedFirst) {
  FakeEngine engine({.num_blocks = 400, .block_tokens = 2},
                    {.max_running = 1, .policy = PolicyKind::kFair});
  for (const std::uint64_t id : {1, 2, 3}) {
    ASSERT_TRUE(engine.submit(id, tokens(4, TokenId(10 * id)), 2, true, {.tenant = "a"}).ok());
  }
  for (const std::uint64_t id : {4, 5}) {
    ASSERT_TRUE(engine.submit(id, tokens(4, TokenId(10 * id)), 2, true, {.tenant = "b"}).ok());
  }
  EXPECT_EQ(order_of_ends(engine), (std::vector<std::uint64_t>{1, 4, 2, 5, 3}));
}

TEST(FairScheduling, OnePlanThatAdmitsSeveralTakesTurnsToo) {
  FakeEngine engine({.num_blocks = 400, .block_tokens = 2}, {.policy = PolicyKind::kFair});
  ASSERT_TRUE(engine.submit(1, tokens(4, 10), 1, true, {.tenant = "a"}).ok());
  ASSERT_TRUE(engine.submit(2, tokens(4, 20), 1, true, {.tenant = "a"}).ok());
  ASSERT_TRUE(engine.submit(3, tokens(4, 30), 1, true, {.tenant = "b"}).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 admit 3 admit 2 1:0+4 3:0+4 2:0+4 ");
}

TEST(AdaptiveScheduling, CachedPromptsGoFirstUntilTheOldestHasWaitedTooLong) {
  for (const bool late : {false, true}) {
    FakeEngine engine({.num_blocks = 400, .block_tokens = 2},
                      {.max_running = 1, .policy = PolicyKind::kAdaptive, .max_wait_seconds = 5});
    ASSERT_TRUE(engine.submit(1, tokens(8, 0), 1).ok());
    EXPECT_EQ(order_of_ends(engine), std::vector<std::uint64_t>{1});
    ASSERT_TRUE(engine.submit(2, tokens(8, 50), 1).ok());
    engine.wait(late ? 5.5 : 4.5);
    ASSERT_TRUE(engine.submit(3, tokens(9, 0), 1).ok());
    EXPECT_EQ(order_of_ends(engine),
              late ? (std::vector<std::uint64_t>{2, 3}) : (std::vector<std::uint64_t>{3, 2}));
  }
}

TEST(Waiting, RequestsThatLackOnlyRowsOfTheNextStepCountAsHavingRoom) {
  FakeEngine engine({.num_blocks = 10, .block_tokens = 2}, {.max_batch_tokens = 4});
  ASSERT_TRUE(engine.submit(1, tokens(6, 0), 1).ok());
  ASSERT_TRUE(engine.submit(2, tokens(6, 50), 1).ok());
  EXPECT_EQ(engine.scheduler.num_new(), 2);
  EXPECT_EQ(engine.scheduler.num_without_room(), 0);
  ASSERT_TRUE(engine.submit(3, tokens(10, 90), 1).ok());
  EXPECT_EQ(engine.scheduler.num_without_room(), 1) << "4 blocks are left for 5";
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+4 ");
  EXPECT_EQ(engine.scheduler.num_without_room(), 1);
}

TEST(Gap, PromptsAreCutWhileOthersGenerateAndOnlyThen) {
  FakeEngine engine({.num_blocks = 400, .block_tokens = 2}, {.max_gap_seconds = 0.010});
  engine.scheduler.set_pace({.fixed_seconds = 0.001, .row_seconds = 0.001, .measured_rows = 1000});
  ASSERT_TRUE(engine.submit(1, tokens(20, 0), 4).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+20 ") << "nobody waits for a token";
  ASSERT_TRUE(engine.submit(2, tokens(20, 50), 2).ok());
  EXPECT_EQ(step_shown(engine), "admit 2 1:20+1 2:0+8 ");
  EXPECT_EQ(step_shown(engine), "1:21+1 2:8+8 ");
  EXPECT_EQ(step_shown(engine), "1:22+1 2:16+4 ");
  EXPECT_EQ(step_shown(engine), "2:20+1 ");
  EXPECT_EQ(engine.finished.at(2), run_alone(tokens(20, 50), 2, 0));
}

TEST(Gap, HalfAPlainStepIsTheMarginForLateSteps) {
  const auto rows_at = [](double lateness) {
    FakeEngine engine({.num_blocks = 400, .block_tokens = 2}, {.max_gap_seconds = 0.100});
    engine.scheduler.set_pace({.fixed_seconds = 0.009,
                               .row_seconds = 0.001,
                               .measured_rows = 1000,
                               .lateness = lateness});
    EXPECT_TRUE(engine.submit(1, tokens(2, 0), 4).ok());
    EXPECT_TRUE(engine.step().ok());
    EXPECT_TRUE(engine.submit(2, tokens(300, 50), 2).ok());
    return engine.scheduler.plan().runs.back().count;
  };
  EXPECT_EQ(rows_at(0), 90) << "0.100 less a plain step of 0.010";
  EXPECT_EQ(rows_at(0.0499), 90);
  EXPECT_EQ(rows_at(0.2499), 74) << "0.084, which is late by 0.021";
}

TEST(Gap, APromptGoesOnByOneRowHoweverShortTheTimeIs) {
  FakeEngine engine({.num_blocks = 400, .block_tokens = 2}, {.max_gap_seconds = 0.001});
  engine.scheduler.set_pace({.fixed_seconds = 0.5, .row_seconds = 0.5, .measured_rows = 1000});
  ASSERT_TRUE(engine.submit(1, tokens(2, 0), 4).ok());
  EXPECT_EQ(step_shown(engine), "admit 1 1:0+2 ");
  ASSERT_TRUE(engine.submit(2, tokens(3, 50), 1).ok());
  EXPECT_EQ(step_shown(engine), "admit 2 1:2+1 2:0+1 ");
  EXPECT_EQ(step_shown(engine), "1:3+1 2:1+1 ");
}

}  // namespace
}  // namespace quire::sched
