// Simulates the policies of the scheduler on a trace of people who chat, with the real scheduler
// and ledger and a clock of its own: a step takes what a pace says. Nothing is computed, so the
// table is the same on every machine.
//
// Four tenants ask. The first one has more than half of all sessions. A third of the requests has
// priority 1. One token of the ledger stands for Load::scale of the trace.
//
// Fairness is how far two tenants come apart in service while both have work, at most, in requests
// of mean cost (Sheng et al., OSDI 2024). 0 would be fair to the token.
//
//   policy_bench [LOAD] [TRACE BLOCKS]   LOAD: how fast requests come, 1 as in the trace; 0.6 by
//   default. TRACE: a recorded one (traces/), in a pool of so many blocks
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/sched/policy.h"
#include "quire/sched/scheduler.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/types.h"
#include "random.h"
#include "traces.h"

namespace quire::bench {
namespace {

constexpr std::int32_t kBlockTokens = 32;
constexpr double kSeconds = 900;  // of the trace
constexpr std::size_t kTenants = 4;
constexpr sched::StepPace kPace{
    .fixed_seconds = 0.012, .row_seconds = 6e-4, .pair_seconds = 5e-8, .measured_rows = 2048};

kv::TimePoint at(double seconds) {
  return kv::TimePoint(
      std::chrono::duration_cast<kv::Clock::duration>(std::chrono::duration<double>(seconds)));
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0;
  }
  std::ranges::sort(values);
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(share * last)];
}

struct Asked {
  double submitted = 0;
  double last_token = 0;
  std::int32_t left = 0;
  std::size_t tenant = 0;
  std::int32_t priority = 0;
};

struct Figures {
  std::int64_t tokens = 0, prompt_tokens = 0, preemptions = 0;
  double seconds = 0;
  std::vector<double> first, first_high, gaps;
  std::array<std::vector<double>, kTenants> first_of;
  double most_apart = 0;  // in requests of mean cost
};

// Follows the service of tenants: computed prompt tokens, and kGenerated for each generated token.
class ServiceMeter {
 public:
  void begin(std::size_t tenant) { ++requests_[tenant]; }
  void end(std::size_t tenant) {
    --requests_[tenant];
    ++ended_;
  }
  void serve(std::size_t tenant, double service) {
    step_[tenant] += service;
    all_ += service;
  }
  // Counts what a step has served.
  void end_step() {
    for (std::size_t a = 0; a < kTenants; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const bool both = requests_[a] > 0 && requests_[b] > 0;
        apart_[a][b] = both ? apart_[a][b] + step_[a] - step_[b] : 0;
        most_ = std::max(most_, std::abs(apart_[a][b]));
      }
    }
    step_ = {};
  }
  [[nodiscard]] double most_requests() const {
    return ended_ == 0 ? 0 : most_ * static_cast<double>(ended_) / all_;
  }

  static constexpr double kGenerated = 2;

 private:
  std::array<std::int64_t, kTenants> requests_{};
  std::array<double, kTenants> step_{};
  std::array<std::array<double, kTenants>, kTenants> apart_{};
  double most_ = 0, all_ = 0;
  std::int64_t ended_ = 0;
};

// How a trace is asked, and of what.
struct Load {
  double speed = 0.6;
  std::int32_t scale = 16;  // tokens of the trace that one of the ledger stands for
  std::int32_t blocks = 1600;
};

class Simulation {
 public:
  Simulation(sched::PolicyKind policy, double max_gap_seconds, const Load& load)
      : ledger_({.num_blocks = load.blocks, .block_tokens = kBlockTokens}),
        scheduler_({.max_batch_tokens = 512,
                    .max_running = 64,
                    .policy = policy,
                    .max_gap_seconds = max_gap_seconds},
                   ledger_),
        load_(load.speed),
        scale_(load.scale) {
    scheduler_.set_pace(kPace);
  }

  Figures run(const Trace& trace) {
    PromptMaker prompts(num_sessions(trace), scale_);
    std::size_t next = 0;
    while (true) {
      while (next < trace.size() && trace[next].seconds < kSeconds &&
             trace[next].seconds / load_ <= now_) {
        submit(trace[next], prompts.prompt(trace[next]), next + 1);
        ++next;
      }
      const bool more = next < trace.size() && trace[next].seconds < kSeconds;
      if (asked_.empty() && !more) {
        break;
      }
      if (asked_.empty()) {
        now_ = trace[next].seconds / load_;
      } else {
        step();
      }
    }
    figures_.seconds = now_;
    figures_.most_apart = meter_.most_requests();
    return figures_;
  }

  [[nodiscard]] double hit_ratio() const {
    return static_cast<double>(ledger_.counts().tokens_reused) /
           static_cast<double>(figures_.prompt_tokens);
  }

 private:
  void submit(const TraceRequest& request, std::span<const TokenId> prompt, std::uint64_t id) {
    Random random(id);
    Asked asked{
        .submitted = request.seconds / load_,
        .left = static_cast<std::int32_t>(4 + random.below(40)),  // unless the trace says it
        .tenant = random.below(8) < 5 ? 0 : static_cast<std::size_t>(1 + request.session % 3),
        .priority = random.below(3) == 0 ? 1 : 0};
    asked.left = request.output > 0 ? request.output : asked.left;
    const bool taken = scheduler_
                           .submit({.id = {id},
                                    .prompt = {prompt.begin(), prompt.end()},
                                    .max_new_tokens = asked.left,
                                    .priority = asked.priority,
                                    .tenant = std::to_string(asked.tenant),
                                    .submitted = at(asked.submitted)})
                           .ok();
    if (taken) {
      figures_.prompt_tokens += std::ssize(prompt);
      asked_[id] = asked;
      meter_.begin(asked.tenant);
    }
  }

  void step() {
    ledger_.cache().set_time(at(now_));
    plan_ = scheduler_.plan(std::move(plan_));
    figures_.preemptions += std::ssize(plan_.preempt) + std::ssize(plan_.make_way);
    const auto runs = scheduler_.commit(plan_);
    if (!runs.ok() || plan_.stuck) {
      std::fprintf(stderr, "error: the plan could not be carried out\n");
      std::exit(1);
    }
    (void)ledger_.take_copies();
    double seconds = kPace.fixed_seconds;
    const std::vector<sched::ScheduledRun> committed(runs->begin(), runs->end());
    for (const sched::ScheduledRun& run : committed) {
      seconds += kPace.seconds(sched::work_of(run.first, run.count));
    }
    now_ += committed.empty() ? 0 : seconds;
    for (const sched::ScheduledRun& run : committed) {
      const Asked& asked = asked_.at(run.request.value);
      meter_.serve(asked.tenant, (asked.last_token == 0 ? run.count : 0) +
                                     (run.samples ? ServiceMeter::kGenerated : 0));
    }
    meter_.end_step();
    for (const sched::ScheduledRun& run : committed) {
      scheduler_.complete(run, run.samples ? std::optional<TokenId>(1) : std::nullopt);
      if (run.samples) {
        book(run.request);
      }
    }
  }

  void book(RequestId id) {
    Asked& asked = asked_.at(id.value);
    ++figures_.tokens;
    if (asked.last_token == 0) {
      const double waited = now_ - asked.submitted;
      figures_.first.push_back(waited);
      figures_.first_of[asked.tenant].push_back(waited);
      if (asked.priority > 0) {
        figures_.first_high.push_back(waited);
      }
    } else {
      figures_.gaps.push_back(now_ - asked.last_token);
    }
    asked.last_token = now_;
    if (--asked.left == 0) {
      scheduler_.finish(id);
      meter_.end(asked.tenant);
      asked_.erase(id.value);
    }
  }

  kv::Ledger ledger_;
  sched::Scheduler scheduler_;
  const double load_;
  const std::int32_t scale_;
  sched::StepPlan plan_;
  std::map<std::uint64_t, Asked> asked_;
  Figures figures_;
  ServiceMeter meter_;
  double now_ = 0;
};

void show(const char* name, const Figures& figures, double hit_ratio) {
  std::vector<double> others;
  for (std::size_t i = 1; i < kTenants; ++i) {
    others.insert(others.end(), figures.first_of[i].begin(), figures.first_of[i].end());
  }
  std::printf(
      "| %s | %.1f | %.2f | %.1f | %.2f | %.2f | %.2f | %.0f | %.0f | %.3f | %.1f | %lld |\n", name,
      static_cast<double>(figures.tokens) / figures.seconds, percentile(figures.first, 0.5),
      percentile(figures.first, 0.99), percentile(figures.first_high, 0.5),
      percentile(figures.first_of[0], 0.5), percentile(others, 0.5),
      1000 * percentile(figures.gaps, 0.5), 1000 * percentile(figures.gaps, 0.99), hit_ratio,
      figures.most_apart, static_cast<long long>(figures.preemptions));
}

int run(const Trace& trace, const Load& load) {
  std::printf(
      "| policy | tokens/s | first p50 | p99 | of priority 1 | of the large tenant | of small ones "
      "| gap p50 (ms) | p99 | hit ratio | tenants apart | preemptions "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|"
      "\n");
  using enum sched::PolicyKind;
  for (const sched::PolicyKind policy : {kFcfs, kPriority, kShortest, kFair, kAdaptive}) {
    Simulation simulation(policy, 0, load);
    const Figures figures = simulation.run(trace);
    show(sched::policy_name(policy), figures, simulation.hit_ratio());
  }
  Simulation simulation(kFcfs, 0.1, load);
  const Figures figures = simulation.run(trace);
  show("fcfs, gap of 100 ms", figures, simulation.hit_ratio());
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Load load;
  load.speed = argc > 1 ? std::atof(argv[1]) : load.speed;
  if (argc > 3) {
    load.scale = 1;
    load.blocks = std::atoi(argv[3]);
  }
  return quire::bench::run(
      argc > 3 ? quire::bench::read_trace(argv[2]) : quire::bench::chat_trace(1), load);
}
