#include "quire/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/fake_engine.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

Tokens prompt_of(std::int32_t size, TokenId first = 0) {
  Tokens tokens;
  for (std::int32_t i = 0; i < size; ++i) {
    tokens.push_back(first + i);
  }
  return tokens;
}

// Returns "preempt 3 preempt 2 admit 4 1:5+2 4:0+8!" with ! for a run that samples.
std::string show(const StepPlan& plan) {
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
    text +=
        base::str_cat(run.request.value, ":", run.first, "+", run.count, run.samples ? "! " : " ");
  }
  for (const RequestId id : plan.drop) {
    text += base::str_cat("drop ", id.value, " ");
  }
  if (plan.stuck) {
    text += base::str_cat("stuck ", plan.stuck->value, " ");
  }
  return text.empty() ? text : text.substr(0, text.size() - 1);
}

std::string step(FakeEngine& engine) {
  const Result<StepPlan> plan = engine.step();
  EXPECT_TRUE(plan.ok());
  EXPECT_TRUE(engine.ledger.check().ok());
  return plan.ok() ? show(*plan) : plan.error().message;
}

// Returns everything that can be seen of the state.
std::string digest(const FakeEngine& engine) {
  const kv::LedgerCounts counts = engine.ledger.counts();
  std::string text = base::str_cat(
      engine.scheduler.num_waiting(), "/", engine.scheduler.num_running(), " ", counts.blocks_free,
      " ", counts.blocks_cached, " ", counts.evictions, " ", counts.tokens_reused);
  for (const auto& [id, active] : engine.running) {
    const RequestProgress progress = engine.scheduler.progress({id});
    text += base::str_cat(" | ", id, " ", progress.cached_tokens, " ", progress.preemptions);
    if (const std::optional<SeqId> sequence = engine.scheduler.sequence({id})) {
      text += base::str_cat(" s", sequence->value, " ",
                            engine.ledger.sequences().num_computed(*sequence));
      const kv::RunView run = engine.ledger.sequences().runs(*sequence).back();
      for (const BlockId block : run.blocks) {
        text += base::str_cat(" b", block.value);
      }
    }
  }
  return text;
}

TEST(Scheduler, PromptIsComputedAndThenOneTokenPerStep) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(6), 3).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+6!");
  EXPECT_EQ(step(engine), "1:6+1!");
  EXPECT_EQ(step(engine), "1:7+1!");
  EXPECT_EQ(step(engine), "");
  EXPECT_EQ(engine.finished.at(1), run_alone(prompt_of(6), 3, 0));
}

TEST(Scheduler, LongPromptIsCutIntoChunks) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 4}, {.max_batch_tokens = 4});
  ASSERT_TRUE(engine.submit(1, prompt_of(10), 2).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+4");
  EXPECT_EQ(step(engine), "1:4+4");
  EXPECT_EQ(step(engine), "1:8+2!");
  EXPECT_EQ(step(engine), "1:10+1!");
}

TEST(Scheduler, DecodeGoesBeforePrefillInEveryStep) {
  FakeEngine engine({.num_blocks = 16, .block_tokens = 4}, {.max_batch_tokens = 5});
  ASSERT_TRUE(engine.submit(1, prompt_of(2), 5).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+2!");
  ASSERT_TRUE(engine.submit(2, prompt_of(9, 50), 1).ok());
  ASSERT_TRUE(engine.submit(3, prompt_of(3, 90), 1).ok());
  EXPECT_EQ(step(engine), "admit 2 1:2+1! 2:0+4");
  EXPECT_EQ(step(engine), "1:3+1! 2:4+4");
  EXPECT_EQ(step(engine), "admit 3 1:4+1! 2:8+1! 3:0+3!");
}

TEST(Scheduler, NewRequestsJoinBetweenSteps) {
  FakeEngine engine({.num_blocks = 16, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(3), 4).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+3!");
  ASSERT_TRUE(engine.submit(2, prompt_of(2, 9), 2).ok());
  EXPECT_EQ(step(engine), "admit 2 1:3+1! 2:0+2!");
  EXPECT_EQ(step(engine), "1:4+1! 2:2+1!");
  EXPECT_EQ(step(engine), "1:5+1!");
}

TEST(Scheduler, PromptWithoutNewTokensIsComputedAndSamplesNothing) {
  FakeEngine engine({.num_blocks = 2, .block_tokens = 4}, {.max_batch_tokens = 5});
  ASSERT_TRUE(engine.submit(1, prompt_of(8), 0).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+5");
  EXPECT_EQ(step(engine), "1:5+3");
  EXPECT_TRUE(engine.finished.at(1).empty());
}

TEST(Scheduler, CachedPrefixIsNotComputedAgain) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(8), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+8!");
  ASSERT_TRUE(engine.submit(2, prompt_of(9), 2).ok());
  EXPECT_EQ(step(engine), "admit 2 2:8+1!");
  EXPECT_EQ(engine.scheduler.progress({2}).cached_tokens, 8);
  EXPECT_EQ(step(engine), "2:9+1!");
  EXPECT_EQ(engine.finished.at(2), run_alone(prompt_of(9), 2, 0));
}

TEST(Scheduler, WithoutReuseEverythingIsComputed) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(8), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+8!");
  ASSERT_TRUE(engine.submit(2, prompt_of(9), 1, false).ok());
  EXPECT_EQ(step(engine), "admit 2 2:0+9!");
}

TEST(Scheduler, MatchedBlocksAreNoLongerEvictableForTheRest) {
  // 4 blocks, 2 of them cached. The second prompt attaches both and needs 2 more; a third, which
  // needs 1, must wait although 4 blocks look available.
  FakeEngine engine({.num_blocks = 4, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(8), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+8!");
  EXPECT_EQ(engine.ledger.blocks_available(), 4);
  ASSERT_TRUE(engine.submit(2, prompt_of(16), 1).ok());
  ASSERT_TRUE(engine.submit(3, prompt_of(2, 77), 1).ok());
  EXPECT_EQ(step(engine), "admit 2 2:8+8!");
  EXPECT_EQ(step(engine), "admit 3 3:0+2!");
}

TEST(Scheduler, NobodyIsAdmittedBeforeAllHisTokensFit) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 4}, {.max_batch_tokens = 4});
  ASSERT_TRUE(engine.submit(1, prompt_of(12), 1).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(8, 50), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+4");
  EXPECT_EQ(step(engine), "1:4+4");
  EXPECT_EQ(step(engine), "1:8+4!");
  EXPECT_EQ(step(engine), "admit 2 2:0+4");
}

TEST(Scheduler, NoOneOvertakesTheHeadOfTheQueue) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(8), 2).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+8!");
  ASSERT_TRUE(engine.submit(2, prompt_of(12, 50), 1).ok());
  ASSERT_TRUE(engine.submit(3, prompt_of(1, 90), 1).ok());
  EXPECT_EQ(step(engine), "1:8+1!");
  EXPECT_EQ(step(engine), "admit 2 admit 3 2:0+12! 3:0+1!");
}

TEST(Scheduler, RunningIsBounded) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 4}, {.max_running = 2});
  for (const std::uint64_t id : {1, 2, 3}) {
    ASSERT_TRUE(engine.submit(id, prompt_of(2, static_cast<TokenId>(10 * id)), 2).ok());
  }
  EXPECT_EQ(step(engine), "admit 1 admit 2 1:0+2! 2:0+2!");
  EXPECT_EQ(engine.scheduler.num_running(), 2);
  EXPECT_EQ(engine.scheduler.num_waiting(), 1);
  EXPECT_EQ(step(engine), "1:2+1! 2:2+1!");
  EXPECT_EQ(step(engine), "admit 3 3:0+2!");
}

TEST(Scheduler, YoungestIsPreemptedAndLaterFinishesUnchanged) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(3), 4).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(3, 50), 4).ok());
  EXPECT_EQ(step(engine), "admit 1 admit 2 1:0+3! 2:0+3!");
  EXPECT_EQ(step(engine), "1:3+1! 2:3+1!");
  EXPECT_EQ(step(engine), "preempt 2 1:4+1!");
  EXPECT_EQ(engine.scheduler.progress({2}).preemptions, 1);
  EXPECT_EQ(engine.scheduler.num_waiting(), 1);
  EXPECT_EQ(step(engine), "1:5+1!");
  EXPECT_EQ(step(engine), "admit 2 2:0+5!");
  EXPECT_EQ(step(engine), "2:5+1!");
  EXPECT_EQ(engine.finished.at(1), run_alone(prompt_of(3), 4, 0));
  EXPECT_EQ(engine.finished.at(2), run_alone(prompt_of(3, 50), 4, 0));
}

TEST(Scheduler, WhereMemoryIsPlentifulRequestsTakeTheirBlocksWhenTheyBegin) {
  FakeEngine engine({.num_blocks = 40, .block_tokens = 4}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(6), 20).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(6), 20).ok());
  ASSERT_TRUE(engine.submit(3, prompt_of(6), 100).ok());
  EXPECT_EQ(step(engine), "admit 1 admit 2 admit 3 1:0+6! 2:0+6! 3:0+6!");
  const std::int64_t taken = engine.ledger.counts().blocks_taken;
  EXPECT_EQ(engine.ledger.counts().blocks_reserved, 10) << "of the third one none";
  for (int i = 0; i < 18; ++i) {
    step(engine);
  }
  EXPECT_EQ(engine.ledger.counts().blocks_taken, taken + 4) << "by the third one";
}

TEST(Scheduler, APreemptedRequestWaitsAtTheFront) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(3), 3).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(3, 50), 3).ok());
  EXPECT_EQ(step(engine), "admit 1 admit 2 1:0+3! 2:0+3!");
  ASSERT_TRUE(engine.submit(3, prompt_of(1, 90), 1).ok());
  EXPECT_EQ(step(engine), "1:3+1! 2:3+1!");
  EXPECT_EQ(step(engine), "preempt 2 1:4+1!");
  EXPECT_EQ(step(engine), "admit 2 admit 3 2:0+5! 3:0+1!");
}

TEST(Scheduler, PlanIsPure) {
  FakeEngine engine({.num_blocks = 6, .block_tokens = 2}, {.max_batch_tokens = 5});
  for (const std::uint64_t id : {1, 2, 3, 4}) {
    ASSERT_TRUE(engine.submit(id, prompt_of(4, static_cast<TokenId>(id % 2)), 4).ok());
  }
  int preempted = 0;
  while (!engine.running.empty()) {
    const std::string before = digest(engine);
    const StepPlan first = engine.scheduler.plan();
    const StepPlan second = engine.scheduler.plan();
    EXPECT_EQ(show(first), show(second));
    EXPECT_EQ(digest(engine), before);
    preempted += static_cast<int>(first.preempt.size());
    ASSERT_EQ(step(engine), show(first));
  }
  EXPECT_GT(preempted, 0);
}

TEST(Scheduler, AStalePlanIsRefusedAndChangesNothing) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(3), 2).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(3), 2).ok());
  const StepPlan plan = engine.scheduler.plan();
  engine.abort(1);
  const std::string before = digest(engine);
  const auto runs = engine.scheduler.commit(plan);
  ASSERT_FALSE(runs.ok());
  EXPECT_EQ(runs.error().code, ErrorCode::kInternal);
  EXPECT_EQ(digest(engine), before);
  EXPECT_EQ(step(engine), "admit 2 2:0+3!");
}

TEST(Scheduler, FinishFreesBlocksAtOnceInEveryState) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(4), 2).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(4, 50), 2).ok());
  ASSERT_TRUE(engine.submit(3, prompt_of(4, 90), 2).ok());
  EXPECT_TRUE(engine.scheduler.finish({3}));  // waiting
  EXPECT_EQ(step(engine), "admit 1 admit 2 1:0+4! 2:0+4!");
  EXPECT_EQ(engine.ledger.counts().blocks_free, 0);
  EXPECT_TRUE(engine.scheduler.finish({1}));  // running
  EXPECT_EQ(engine.ledger.counts().blocks_free, 2);
  EXPECT_FALSE(engine.scheduler.finish({1}));
  EXPECT_EQ(engine.scheduler.num_running(), 1);
  EXPECT_EQ(engine.scheduler.sequence({1}), std::nullopt);
}

TEST(Scheduler, ARunThatWasFinishedAfterTheCommitIsIgnored) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(4), 2).ok());
  const auto runs = engine.scheduler.commit(engine.scheduler.plan());
  ASSERT_TRUE(runs.ok());
  EXPECT_TRUE(engine.scheduler.finish({1}));
  engine.scheduler.complete(runs->front(), 5);
  EXPECT_EQ(engine.ledger.counts().blocks_free, 4);
  EXPECT_TRUE(engine.ledger.check().ok());
}

TEST(Scheduler, WhatCanNeverFitIsRefusedWithBothNumbers) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2}, {.block_bytes = 1024});
  ASSERT_TRUE(engine.submit(1, prompt_of(5), 4).ok());  // 8 tokens: fits exactly
  const Status refused = engine.submit(2, prompt_of(5), 5);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(refused.error().message,
            "request 2 needs 5 blocks for 9 tokens (5.0 KiB), the pool has 4 (4.0 KiB); shorten "
            "the prompt, lower max_tokens or raise kv_budget");
  EXPECT_EQ(refused.error().needed_bytes, 5120);
  EXPECT_EQ(refused.error().free_bytes, 4096);
  EXPECT_EQ(engine.scheduler.num_waiting(), 1);
}

TEST(Scheduler, HugeTokenCountsOverflowAsAnErrorAndNotAsANumber) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 1, .window_tokens = 2}, {});
  const Status refused = engine.submit(1, prompt_of(5), 2147483647);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverflow);
}

TEST(Scheduler, MalformedRequestsAreRefused) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2}, {});
  EXPECT_EQ(engine.submit(1, {}, 1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.submit(1, {5}, -1).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(engine.submit(1, {5}, 1).ok());
  EXPECT_EQ(engine.submit(1, {5}, 1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.scheduler.num_waiting(), 1);
}

TEST(Scheduler, ConfigOutOfRangeIsRefused) {
  EXPECT_TRUE(SchedulerConfig{}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.max_batch_tokens = 0}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.max_running = 0}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.block_bytes = -1}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.aging_seconds = 0}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.decode_weight = -1}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.max_wait_seconds = std::nan("")}.validate().ok());
  EXPECT_FALSE(SchedulerConfig{.max_gap_seconds = -1}.validate().ok());
}

TEST(Scheduler, BlocksHeldOutsideMakeTheHeadStuckUntilTheyReturn) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2}, {});
  const SeqId held = engine.ledger.sequences().open(prompt_of(4, 70), false);
  ASSERT_TRUE(engine.ledger.sequences().extend(held, 4).ok());
  ASSERT_TRUE(engine.submit(1, prompt_of(6), 1).ok());
  const StepPlan plan = engine.scheduler.plan();
  EXPECT_EQ(show(plan), "stuck 1");
  EXPECT_TRUE(plan.empty());
  engine.ledger.sequences().close(held);
  EXPECT_EQ(step(engine), "admit 1 1:0+6!");
}

TEST(Scheduler, ARunningRequestIsStuckOnlyWhenDroppingAllOthersWouldNotHelp) {
  FakeEngine engine({.num_blocks = 6, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(4), 3).ok());
  ASSERT_TRUE(engine.submit(2, prompt_of(2, 50), 3).ok());
  EXPECT_EQ(step(engine), "admit 1 admit 2 1:0+4! 2:0+2!");
  const SeqId held = engine.ledger.sequences().open(prompt_of(6, 70), false);
  ASSERT_TRUE(engine.ledger.sequences().extend(held, 6).ok());
  EXPECT_EQ(step(engine), "preempt 2 1:4+1!");
  engine.ledger.sequences().close(held);
  EXPECT_EQ(step(engine), "admit 2 1:5+1! 2:0+3!");

  FakeEngine alone({.num_blocks = 3, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(alone.submit(1, prompt_of(4), 3).ok());
  EXPECT_EQ(step(alone), "admit 1 1:0+4!");
  const SeqId pinned = alone.ledger.sequences().open(prompt_of(2, 70), false);
  ASSERT_TRUE(alone.ledger.sequences().extend(pinned, 2).ok());
  EXPECT_EQ(show(alone.scheduler.plan()), "stuck 1");
  alone.abort(1);
  EXPECT_EQ(alone.ledger.counts().blocks_free, 2);
}

TEST(Scheduler, WindowedSequenceLongerThanThePoolRuns) {
  FakeEngine engine({.num_blocks = 3, .block_tokens = 4, .window_tokens = 5},
                    {.max_batch_tokens = 64});
  ASSERT_TRUE(engine.submit(1, prompt_of(30), 20).ok());
  while (!engine.running.empty()) {
    ASSERT_NE(step(engine), "");
  }
  EXPECT_EQ(engine.finished.at(1), run_alone(prompt_of(30), 20, 5));
}

// Opens a sequence of `tail` tokens behind a segment of 3.
SeqId composed(kv::Ledger& ledger, std::int32_t tail) {
  const SeqId source = ledger.sequences().open(prompt_of(3, 40), false);
  EXPECT_TRUE(ledger.sequences().extend(source, 3).ok());
  ledger.sequences().advance(source, 3);
  const Result<kv::SegmentId> segment = ledger.segments().seal(source);
  ledger.sequences().close(source);
  const kv::SegmentUse use = {*segment, 0, 0};
  const Result<SeqId> id = ledger.segments().compose({&use, 1}, {.tokens = prompt_of(tail)});
  EXPECT_TRUE(ledger.segments().drop(*segment)) << "the sequence holds its blocks";
  return *id;
}

TEST(Scheduler, ACompositionComputesOnlyWhatIsBehindItsSegments) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 2}, {});
  const SeqId id = composed(engine.ledger, 5);
  ASSERT_TRUE(engine.scheduler.submit({.id = {1}, .sequence = id, .max_new_tokens = 2}).ok());
  const StepPlan plan = engine.scheduler.plan();
  EXPECT_EQ(show(plan), "admit 1 1:0+5!");
  const auto runs = engine.scheduler.commit(plan);
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(engine.scheduler.progress({1}).cached_tokens, 3);
  engine.scheduler.complete(runs->front(), 9);
  EXPECT_EQ(show(engine.scheduler.plan()), "1:5+1!");
  EXPECT_TRUE(engine.scheduler.finish({1}));
  EXPECT_EQ(engine.ledger.counts().blocks_in_use, 0);
}

TEST(Scheduler, UnderAdaptiveACompositionCountsByItsSegmentsToo) {
  FakeEngine engine({.num_blocks = 40, .block_tokens = 2},
                    {.max_running = 1, .policy = PolicyKind::kAdaptive});
  ASSERT_TRUE(engine.submit(1, prompt_of(6), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+6!");
  ASSERT_TRUE(engine.submit(2, prompt_of(10, 70), 1).ok());  // 0 of 10 tokens
  ASSERT_TRUE(engine.submit(3, prompt_of(12), 1).ok());      // 6 of 12
  const SeqId id = composed(engine.ledger, 2);               // 3 of 5
  ASSERT_TRUE(engine.scheduler.submit({.id = {4}, .sequence = id, .max_new_tokens = 1}).ok());
  const StepPlan plan = engine.scheduler.plan();
  EXPECT_EQ(show(plan), "admit 4 4:0+2!");
}

TEST(Scheduler, FollowersCountWhereRoomIsCounted) {
  const auto lacking = [](std::int32_t blocks, std::int32_t places, std::int32_t followers) {
    FakeEngine engine({.num_blocks = blocks, .block_tokens = 2}, {.max_running = places});
    EXPECT_TRUE(
        engine.scheduler
            .submit(
                {.id = {1}, .prompt = prompt_of(6), .max_new_tokens = 3, .followers = followers})
            .ok());
    EXPECT_EQ(engine.scheduler.num_new(), 1 + followers);
    return engine.scheduler.num_without_room();
  };
  EXPECT_EQ(lacking(20, 10, 5), 0);
  EXPECT_EQ(lacking(5, 10, 5), 3) << "3 blocks for the prompt, and one for each that follows";
  EXPECT_EQ(lacking(20, 4, 5), 2) << "places";
}

TEST(Scheduler, ACompositionOfNoSegmentTakesNothingFromThePrefixCache) {
  FakeEngine engine({.num_blocks = 8, .block_tokens = 2}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(5), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+5!");
  ASSERT_EQ(engine.ledger.cache().match(prompt_of(5), ""), 4);
  const Result<SeqId> id = engine.ledger.segments().compose({}, {.tokens = prompt_of(5)});
  ASSERT_TRUE(engine.scheduler.submit({.id = {2}, .sequence = *id, .max_new_tokens = 1}).ok());
  const StepPlan plan = engine.scheduler.plan();
  EXPECT_EQ(show(plan), "admit 2 2:0+5!");
  EXPECT_TRUE(engine.scheduler.commit(plan).ok());
}

TEST(Scheduler, ACompositionThatCannotFitOrHasNothingToComputeIsRefusedAndLeftToItsOwner) {
  FakeEngine engine({.num_blocks = 6, .block_tokens = 2}, {});
  const SeqId long_one = composed(engine.ledger, 9);
  EXPECT_EQ(
      engine.scheduler.submit({.id = {1}, .sequence = long_one, .max_new_tokens = 1}).error().code,
      ErrorCode::kOverflow);
  const SeqId empty = composed(engine.ledger, 0);
  EXPECT_EQ(
      engine.scheduler.submit({.id = {1}, .sequence = empty, .max_new_tokens = 1}).error().code,
      ErrorCode::kInvalidArgument);
  EXPECT_TRUE(engine.ledger.sequences().contains(long_one));
  EXPECT_TRUE(engine.ledger.sequences().contains(empty));
}

TEST(Scheduler, APreemptedCompositionComesBackToItsSegments) {
  FakeEngine engine({.num_blocks = 6, .block_tokens = 2, .prefix_cache = false}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(4), 3).ok());
  const SeqId id = composed(engine.ledger, 2);
  ASSERT_TRUE(engine.scheduler.submit({.id = {2}, .sequence = id, .max_new_tokens = 2}).ok());
  const auto commit = [&] {
    const StepPlan plan = engine.scheduler.plan();
    const auto runs = engine.scheduler.commit(plan);
    EXPECT_TRUE(runs.ok());
    for (const ScheduledRun& run : *runs) {
      engine.scheduler.complete(run, run.samples ? std::optional<TokenId>(7) : std::nullopt);
    }
    return show(plan);
  };
  EXPECT_EQ(commit(), "admit 1 admit 2 1:0+4! 2:0+2!");
  EXPECT_EQ(commit(), "preempt 2 1:4+1!");
  EXPECT_TRUE(engine.scheduler.finish({1}));
  EXPECT_EQ(commit(), "admit 2 2:0+3!") << "its sampled token is computed with its prompt";
}

TEST(Scheduler, AForkThatIsPreemptedFindsItsPrefixAgain) {
  FakeEngine engine({.num_blocks = 6, .block_tokens = 2}, {});
  ASSERT_TRUE(engine.submit(1, prompt_of(5), 1).ok());
  EXPECT_EQ(step(engine), "admit 1 1:0+5!");
  ASSERT_TRUE(engine.submit(2, prompt_of(2, 50), 6).ok());
  ASSERT_TRUE(engine.submit_fork(3, prompt_of(6), 4, 3).ok());
  EXPECT_EQ(step(engine), "admit 2 admit 3 2:0+2! 3:3+3!") << "from the middle of a block";
  std::string plans;
  for (int i = 0; i < 12; ++i) {
    plans += step(engine) + "; ";
  }
  EXPECT_NE(plans.find("preempt 3"), std::string::npos) << plans;
  EXPECT_EQ(plans.find("3:0+"), std::string::npos) << "it finds its prefix again: " << plans;
  EXPECT_EQ(engine.finished.at(2), run_alone(prompt_of(2, 50), 6, 0));
  EXPECT_EQ(engine.finished.at(3), run_alone(prompt_of(6), 4, 0));
  EXPECT_EQ(engine.ledger.counts().blocks_in_use, 0);
}

TEST(Scheduler, WhatIsKeptElsewhereComesBackBeforeARequestWithKVOfItsOwnIsComputed) {
  FakeEngine engine({.num_blocks = 20, .block_tokens = 2}, {.max_batch_tokens = 8});
  ASSERT_TRUE(engine.submit(1, prompt_of(9), 1).ok());
  while (!engine.running.empty()) {
    (void)step(engine);
  }
  ASSERT_TRUE(engine.submit_fork(2, prompt_of(9), 1, 4).ok());
  const auto takes = engine.scheduler.takes({2});
  ASSERT_TRUE(takes);
  EXPECT_EQ(takes->at_hand, 4);
  EXPECT_EQ(Tokens(takes->tokens.begin(), takes->tokens.end()), prompt_of(9));
  engine.scheduler.note_kept({2}, 7);
  EXPECT_EQ(engine.scheduler.takes({2})->at_hand, 7);
  const StepPlan plan = engine.scheduler.plan();
  EXPECT_EQ(show(plan), "admit 2");
  ASSERT_TRUE(engine.scheduler.commit(plan).ok());
  EXPECT_FALSE(engine.scheduler.takes({2})) << "it runs";
  const SeqId sequence = *engine.scheduler.sequence({2});
  ASSERT_TRUE(engine.ledger.sequences().extend(sequence, 3).ok());
  engine.scheduler.complete({.request = {2}, .sequence = sequence, .first = 4, .count = 3},
                            std::nullopt);
  engine.scheduler.note_brought({2}, 4);
  engine.scheduler.note_kept({2}, 0);
  EXPECT_EQ(engine.scheduler.progress({2}).cached_tokens, 7);
  EXPECT_EQ(engine.scheduler.progress({2}).kept_tokens, 3);
  EXPECT_EQ(show(engine.scheduler.plan()), "2:7+2!");
}

TEST(Scheduler, ThoseWaitingDropWhatTheyBroughtWhenNothingElseCanRun) {
  FakeEngine engine({.num_blocks = 4, .block_tokens = 2}, {});
  for (const std::uint64_t id : {1, 2}) {
    ASSERT_TRUE(engine.submit(id, prompt_of(4, static_cast<TokenId>(50 * id)), 1).ok());
    ASSERT_EQ(step(engine), base::str_cat("admit ", id, " ", id, ":0+4!"));
  }
  for (const std::uint64_t id : {1, 2}) {
    ASSERT_TRUE(engine.submit_fork(id + 2, prompt_of(6, static_cast<TokenId>(50 * id)), 1, 4).ok());
  }
  EXPECT_EQ(engine.ledger.counts().blocks_in_use, 4) << "no block is left for either";
  EXPECT_EQ(step(engine), "drop 3 drop 4");
  EXPECT_EQ(engine.ledger.counts().blocks_in_use, 0);
  for (int i = 0; i < 4; ++i) {
    step(engine);
  }
  EXPECT_EQ(engine.finished.at(3), run_alone(prompt_of(6, 50), 1, 0));
  EXPECT_EQ(engine.finished.at(4), run_alone(prompt_of(6, 100), 1, 0));
}

TEST(Scheduler, DestructionClosesItsSequences) {
  kv::Ledger ledger({.num_blocks = 4, .block_tokens = 2, .prefix_cache = false});
  {
    Scheduler scheduler({}, ledger);
    ASSERT_TRUE(scheduler.submit({.id = {1}, .prompt = prompt_of(4), .max_new_tokens = 2}).ok());
    ASSERT_TRUE(scheduler.commit(scheduler.plan()).ok());
    EXPECT_EQ(ledger.counts().blocks_free, 2);
  }
  EXPECT_EQ(ledger.counts().blocks_free, 4);
}

}  // namespace
}  // namespace quire::sched
