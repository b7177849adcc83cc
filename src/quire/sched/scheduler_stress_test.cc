// The scheduler under random load: outputs against the model running alone, plans against an oracle
// that simulates the line on paper.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/fake_engine.h"
#include "quire/sched/policy.h"
#include "quire/sched/scheduler.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

struct Load {
  kv::LedgerConfig blocks;
  SchedulerConfig config;
  std::uint32_t seed = 0;
  bool swaps = false;  // the KV of preempted requests is kept and comes back
  bool ahead = false;  // steps are launched before the one before has ended, and requests end early
};

// Submits and aborts at random for a while and then lets everything finish.
class RandomLoad {
 public:
  explicit RandomLoad(const Load& load)
      : engine_(load.blocks, load.config),
        random_(load.seed),
        ahead_(load.ahead),
        policy_(load.config.policy) {
    engine_.swaps = load.swaps;
  }

  void run() {
    for (int i = 0; i < 400 || !engine_.running.empty(); ++i) {
      ASSERT_LT(i, 20000) << "does not end";
      engine_.wait(below(3));
      const bool was_launched = engine_.launched();
      if (i < 400 && !was_launched) {
        disturb();
      }
      const std::size_t finished_before = engine_.finished.size();
      const Result<StepPlan> plan = engine_.step(ahead_ && below(8) != 0);
      ASSERT_TRUE(plan.ok()) << plan.error().message;
      ASSERT_FALSE(plan->stuck) << "nothing is held outside";
      ASSERT_TRUE(engine_.running.empty() || was_launched || !plan->empty() ||
                  !plan->drop.empty() || !plan->make_way.empty() || !plan->admit.empty());
      check_plan(*plan);
      if (engine_.finished.size() == finished_before) {
        check_launched();
      }
      const Status status = engine_.ledger.check();
      ASSERT_TRUE(status.ok()) << status.error().message;
    }
    check_outputs();
  }

  std::int64_t preemptions() const { return preemptions_; }
  std::int64_t swapped() const { return engine_.swapped_tokens; }
  std::int64_t steps_ahead() const { return engine_.steps_ahead; }
  std::int64_t finished() const { return static_cast<std::int64_t>(engine_.finished.size()); }
  std::int64_t reused() const { return engine_.ledger.counts().tokens_reused; }

 private:
  std::int32_t below(std::int32_t bound) {
    return static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(bound));
  }

  void disturb() {
    if (below(3) == 0) {
      // Prompts share beginnings, so that they match, compute the same blocks together, and evict.
      Tokens prompt(static_cast<std::size_t>(below(12)), below(2));
      prompt.resize(prompt.size() + 1 + static_cast<std::size_t>(below(6)), below(3));
      const std::int32_t max_new_tokens = below(20);
      const bool reuse = below(4) != 0;
      const Whose whose{.priority = below(3), .tenant = below(2) == 0 ? "a" : "b"};
      const Status status = below(4) == 0
                                ? engine_.submit_fork(++last_id_, prompt, max_new_tokens, below(16))
                                : engine_.submit(++last_id_, prompt, max_new_tokens, reuse, whose);
      if (status.ok()) {
        const std::int32_t ends =
            ahead_ && max_new_tokens > 1 ? 1 + below(max_new_tokens) : max_new_tokens;
        engine_.running.at(last_id_).max_new_tokens = ends;
        wanted_[last_id_] = {prompt, ends};
      } else {
        ASSERT_EQ(status.error().code, ErrorCode::kOverflow);
      }
    }
    if (below(40) == 0 && !engine_.running.empty()) {
      const auto victim = std::next(engine_.running.begin(),
                                    below(static_cast<std::int32_t>(engine_.running.size())));
      wanted_.erase(victim->first);
      engine_.abort(victim->first);
    }
  }

  void check_plan(const StepPlan& plan) {
    preemptions_ += std::ssize(plan.preempt) + std::ssize(plan.make_way);
    ASSERT_TRUE(!plan.preempts() || plan.admit.empty());
    if (policy_ != PolicyKind::kFcfs) {
      return;
    }
    ASSERT_TRUE(std::ranges::is_sorted(plan.preempt, std::ranges::greater()));
    for (const RequestId id : plan.admit) {
      if (id.value > first_admitted_) {
        ASSERT_TRUE(engine_.running.lower_bound(first_admitted_ + 1) == engine_.running.end() ||
                    engine_.running.lower_bound(first_admitted_ + 1)->first >= id.value)
            << "somebody was overtaken";
        first_admitted_ = id.value;
      }
    }
  }

  // A step that was launched ahead is what would be planned now for those who ran.
  void check_launched() {
    if (policy_ != PolicyKind::kFcfs) {
      return;
    }
    const std::vector<ScheduledRun>& runs = engine_.launched_runs();
    const StepPlan plan = engine_.scheduler.plan();
    ASSERT_TRUE(runs.empty() || plan.preempt.empty());
    ASSERT_LE(runs.size(), plan.runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      ASSERT_EQ(plan.runs[i].request, runs[i].request);
      ASSERT_EQ(plan.runs[i].first, runs[i].first);
      ASSERT_EQ(plan.runs[i].count, runs[i].count);
      ASSERT_EQ(plan.runs[i].samples, runs[i].samples);
    }
  }

  void check_outputs() {
    ASSERT_EQ(engine_.finished.size(), wanted_.size());
    for (const auto& [id, request] : wanted_) {
      ASSERT_EQ(engine_.finished.at(id), run_alone(request.prompt, request.max_new_tokens,
                                                   engine_.ledger.config().window_tokens))
          << "request " << id;
    }
    const kv::LedgerCounts counts = engine_.ledger.counts();
    ASSERT_EQ(counts.blocks_in_use, 0);
    (void)engine_.ledger.cache().clear();
    ASSERT_EQ(engine_.ledger.counts().blocks_free, counts.blocks_total);
  }

  struct Wanted {
    Tokens prompt;
    std::int32_t max_new_tokens = 0;
  };

  FakeEngine engine_;
  std::mt19937 random_;
  bool ahead_;
  PolicyKind policy_;
  std::uint64_t last_id_ = 0;
  std::uint64_t first_admitted_ = 0;  // youngest that was ever admitted
  std::map<std::uint64_t, Wanted> wanted_;
  std::int64_t preemptions_ = 0;
};

// Counts of all loads of a test.
struct Totals {
  std::int64_t preemptions = 0, finished = 0, reused = 0, ahead = 0;

  void add(const RandomLoad& load) {
    preemptions += load.preemptions();
    finished += load.finished();
    reused += load.reused();
    ahead += load.steps_ahead();
  }
};

class Shortage : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(StepsAhead, Shortage, testing::Bool());

TEST_P(Shortage, EveryRequestEndsWithItsOwnOutput) {
  Totals totals;
  std::uint32_t seed = 0;
  for (const std::int32_t block_tokens : {1, 3, 8}) {
    for (const std::int32_t window : {0, 1, 6}) {
      for (const std::int32_t batch : {1, 4, 64}) {
        for (const bool cache : {true, false}) {
          RandomLoad load({.blocks = {.num_blocks = 8 + 24 / block_tokens,
                                      .block_tokens = block_tokens,
                                      .window_tokens = window,
                                      .prefix_cache = cache},
                           .config = {.max_batch_tokens = batch, .max_running = 6},
                           .seed = ++seed,
                           .ahead = GetParam()});
          load.run();
          ASSERT_FALSE(testing::Test::HasFatalFailure())
              << "block_tokens " << block_tokens << " window " << window << " batch " << batch
              << " cache " << cache;
          totals.add(load);
        }
      }
    }
  }
  EXPECT_GT(totals.finished, 3000);
  EXPECT_GT(totals.preemptions, GetParam() ? 20 : 300);
  EXPECT_GT(totals.reused, 3000);
  EXPECT_EQ(totals.ahead > 3000, GetParam()) << totals.ahead;
}

// Seven tenths of a block's bytes go behind a window. Forks keep them.
TEST_P(Shortage, OverBlocksThatLoseTheirWindowPartsToo) {
  Totals totals;
  std::int64_t swapped = 0;
  std::uint32_t seed = 200;
  for (const std::int32_t block_tokens : {1, 3, 8}) {
    for (const std::int32_t window : {1, 6, 9}) {
      for (const std::int32_t batch : {1, 64}) {
        for (const bool cache : {true, false}) {
          RandomLoad load({.blocks = {.num_blocks = 8 + 24 / block_tokens,
                                      .block_tokens = block_tokens,
                                      .window_group = {.tokens = window, .block_bytes = 7},
                                      .prefix_cache = cache,
                                      .formats = {{.block_bytes = 10}}},
                           .config = {.max_batch_tokens = batch, .max_running = 6},
                           .seed = ++seed,
                           .swaps = seed % 4 < 2,
                           .ahead = GetParam()});
          load.run();
          ASSERT_FALSE(testing::Test::HasFatalFailure())
              << "block_tokens " << block_tokens << " window " << window << " batch " << batch
              << " cache " << cache;
          totals.add(load);
          swapped += load.swapped();
        }
      }
    }
  }
  EXPECT_GT(totals.finished, 2000);
  EXPECT_GT(swapped, 0);
  EXPECT_GT(totals.preemptions, GetParam() ? 5 : 50);
  EXPECT_GT(totals.reused, 1000);
  EXPECT_EQ(totals.ahead > 1000, GetParam()) << totals.ahead;
}

// Rows of a block that is not full lie in an open block of twice the bytes. Some slabs stay with
// these; the pool has blocks for about two of six requests.
TEST_P(Shortage, OverBlocksThatAreStoredWhenTheyAreFullToo) {
  Totals totals;
  std::uint32_t seed = 100;
  for (const std::int32_t block_tokens : {1, 3, 8}) {
    for (const std::int32_t standing : {14, 3}) {
      for (const std::int32_t batch : {1, 4, 64}) {
        for (const bool cache : {true, false}) {
          RandomLoad load(
              {.blocks = {.num_blocks = 30 + 48 / block_tokens,
                          .block_tokens = block_tokens,
                          .prefix_cache = cache,
                          .formats = {{.block_bytes = 4, .open = kv::FormatId{1}},
                                      {.block_bytes = 8}},
                          .slab_blocks = 4,
                          .standing_open_blocks = std::min(standing, (30 + 48 / block_tokens) / 4)},
               .config = {.max_batch_tokens = batch, .max_running = 6},
               .seed = ++seed,
               .ahead = GetParam()});
          load.run();
          ASSERT_FALSE(testing::Test::HasFatalFailure())
              << "block_tokens " << block_tokens << " standing " << standing << " batch " << batch
              << " cache " << cache;
          totals.add(load);
        }
      }
    }
  }
  EXPECT_GT(totals.finished, 1500);
  EXPECT_GT(totals.preemptions, GetParam() ? 3 : 20);
  EXPECT_GT(totals.reused, 500);
  EXPECT_EQ(totals.ahead > 1000, GetParam()) << totals.ahead;
}

TEST_P(Shortage, EveryRequestEndsWithItsOwnOutputUnderEveryPolicy) {
  std::int64_t preemptions = 0, finished = 0, ahead = 0;
  std::uint32_t seed = 200;
  for (const PolicyKind policy :
       {PolicyKind::kPriority, PolicyKind::kShortest, PolicyKind::kFair, PolicyKind::kAdaptive}) {
    for (const std::int32_t block_tokens : {1, 3, 8}) {
      for (const std::int32_t batch : {1, 4, 64}) {
        for (const bool cache : {true, false}) {
          RandomLoad load({.blocks = {.num_blocks = 8 + 24 / block_tokens,
                                      .block_tokens = block_tokens,
                                      .prefix_cache = cache},
                           .config = {.max_batch_tokens = batch,
                                      .max_running = 6,
                                      .policy = policy,
                                      .aging_seconds = 40,
                                      .max_wait_seconds = 20},
                           .seed = ++seed,
                           .ahead = GetParam()});
          load.run();
          ASSERT_FALSE(testing::Test::HasFatalFailure())
              << policy_name(policy) << " block_tokens " << block_tokens << " batch " << batch
              << " cache " << cache;
          preemptions += load.preemptions();
          finished += load.finished();
          ahead += load.steps_ahead();
        }
      }
    }
  }
  EXPECT_GT(finished, 3000);
  EXPECT_GT(preemptions, GetParam() ? 20 : 300);
  EXPECT_EQ(ahead > 1000, GetParam()) << ahead;
}

TEST_P(Shortage, EveryRequestEndsWithItsOwnOutputWhereItsKvIsSwapped) {
  std::int64_t preemptions = 0, swapped = 0;
  std::uint32_t seed = 300;
  for (const PolicyKind policy : {PolicyKind::kFcfs, PolicyKind::kPriority, PolicyKind::kFair}) {
    for (const std::int32_t block_tokens : {1, 3, 8}) {
      for (const std::int32_t batch : {1, 4, 64}) {
        for (const bool cache : {true, false}) {
          RandomLoad load(
              {.blocks = {.num_blocks = 8 + 24 / block_tokens,
                          .block_tokens = block_tokens,
                          .prefix_cache = cache},
               .config = {.max_batch_tokens = batch, .max_running = 6, .policy = policy},
               .seed = ++seed,
               .swaps = true,
               .ahead = GetParam()});
          load.run();
          ASSERT_FALSE(testing::Test::HasFatalFailure())
              << policy_name(policy) << " block_tokens " << block_tokens << " batch " << batch
              << " cache " << cache;
          preemptions += load.preemptions();
          swapped += load.swapped();
        }
      }
    }
  }
  EXPECT_GT(preemptions, GetParam() ? 30 : 200);
  EXPECT_GT(swapped, GetParam() ? 100 : 1000);
}

// With blocks for all, FCFS is simple enough to simulate: single tokens first, then prompts in
// order, then arrivals, until the rows are used up.
TEST(SchedulerStress, RowsAreSharedAsTheOracleSays) {
  struct Line {
    std::uint64_t id = 0;
    std::int32_t known = 0;
    std::int32_t computed = 0;
  };
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const auto batch = static_cast<std::int32_t>(1 + random() % 20);
    const auto most = static_cast<std::size_t>(1 + random() % 8);
    FakeEngine engine({.num_blocks = 4096, .block_tokens = 1, .prefix_cache = false},
                      {.max_batch_tokens = batch, .max_running = static_cast<std::int32_t>(most)});
    std::vector<Line> line;
    for (std::uint64_t id = 1; id <= 40; ++id) {
      const auto size = static_cast<std::int32_t>(1 + random() % 30);
      ASSERT_TRUE(engine
                      .submit(id, Tokens(static_cast<std::size_t>(size), 1),
                              static_cast<std::int32_t>(1 + random() % 9))
                      .ok());
      line.push_back({.id = id, .known = size});
    }
    std::size_t running = 0;
    while (!engine.running.empty()) {
      std::map<std::uint64_t, std::int32_t> expected;
      std::int32_t rows = batch;
      const auto give = [&](const Line& request) {
        const std::int32_t count = std::min(rows, request.known - request.computed);
        rows -= count;
        if (count > 0) {
          expected[request.id] = count;
        }
      };
      for (const bool single : {true, false}) {
        for (std::size_t i = 0; i < running; ++i) {
          if ((line[i].known - line[i].computed == 1) == single) {
            give(line[i]);
          }
        }
      }
      const std::size_t places = std::min({most, static_cast<std::size_t>(batch), line.size()});
      for (; running < places && rows > 0; ++running) {
        give(line[running]);
      }
      const Result<StepPlan> plan = engine.step();
      ASSERT_TRUE(plan.ok());
      std::map<std::uint64_t, std::int32_t> actual;
      for (const PlannedRun& run : plan->runs) {
        actual[run.request.value] = run.count;
      }
      ASSERT_EQ(actual, expected);
      for (Line& request : line) {
        request.computed += expected.contains(request.id) ? expected[request.id] : 0;
        request.known += request.computed == request.known ? 1 : 0;
      }
      running -= static_cast<std::size_t>(
          std::erase_if(line, [&](const Line& l) { return engine.finished.contains(l.id); }));
    }
  }
}

}  // namespace
}  // namespace quire::sched
