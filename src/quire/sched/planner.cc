#include "quire/sched/planner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/sched/ranking.h"
#include "quire/sched/room_left.h"
#include "quire/sched/row_budget.h"
#include "quire/sched/state.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/sched/waiting.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

// Makes one plan. All counts are from the ledger as it is; nothing of it is changed.
class Planner {
 public:
  // With `max_rows` the step has so many rows and takes any time.
  explicit Planner(const SchedulerState& state, std::optional<std::int32_t> max_rows = {})
      : state_(state),
        ledger_(*state.ledger),
        sequences_(ledger_.sequences()),
        max_rows_(max_rows.value_or(state.config.max_batch_tokens)),
        bounded_(!max_rows && state.config.max_gap_seconds > 0),
        ranking_(state),
        room_(ledger_) {}

  void make(StepPlan& plan) {
    held_ = ranking_.outranked_prompts() ? pending_of_best() : 0;
    attempt(plan);
    if (held_ > 0 && plan.admit.empty() && !plan.preempts()) {
      held_ = 0;  // nobody was there to use the rows
      attempt(plan);
    }
  }

  // Returns the blocks of the pool's own format that the plan leaves over.
  [[nodiscard]] std::int64_t blocks_left() const { return room_.own(); }

 private:
  void attempt(StepPlan& plan) {
    plan.clear();
    plan.version = state_.version;
    budget_ = RowBudget(max_rows_);
    const std::optional<RequestId> needy = first_needy();
    if (needy && !plan_running(plan)) {
      plan.stuck = needy;
    } else if (plan.preempt.empty()) {
      admit(plan);
      if (plan.admit.empty()) {
        make_way(ranking_, ledger_, plan);
      }
    }
    if (plan.stuck) {
      drop_waiting(state_, plan);
    }
  }

  [[nodiscard]] const QueuedRequest& running(std::size_t rank) const {
    return *ranking_.running()[rank];
  }

  [[nodiscard]] std::int32_t wanted_tokens(const QueuedRequest& queued) const {
    return sched::wanted_tokens(queued, sequences_);
  }

  [[nodiscard]] std::int32_t pending_tokens(const QueuedRequest& queued) const {
    return pending_of(queued, sequences_);
  }

  // Makes a run of the tokens [first, first + count).
  [[nodiscard]] PlannedRun make_run(const QueuedRequest& queued, std::int32_t first,
                                    std::int32_t count) const {
    const auto known = static_cast<std::int32_t>(known_tokens(queued, sequences_).size());
    return {.request = queued.request.id,
            .first = first,
            .count = count,
            .samples = first + count == known && queued.request.max_new_tokens > 0};
  }

  [[nodiscard]] std::int32_t pending_of_best() const {
    const QueuedRequest& best = *ranking_.waiting().front();
    return std::max(wanted_tokens(best) - find_known_kv(best, ledger_).tokens, 1);
  }

  [[nodiscard]] std::optional<RequestId> first_needy() const {
    for (const QueuedRequest* queued : ranking_.running()) {
      if (pending_tokens(*queued) > 0) {
        return queued->request.id;
      }
    }
    return std::nullopt;
  }

  // Keeps as many of the running as blocks allow, from the first in rank on. False when none could
  // run.
  bool plan_running(StepPlan& plan) {
    std::vector<SeqId> dropped;
    for (std::size_t keep = ranking_.running().size(); keep > 0; --keep) {
      if (fit_blocks(keep, dropped, plan.runs) && !plan.runs.empty()) {
        return true;
      }
      dropped.push_back(running(keep - 1).running_sequence());
      plan.preempt.push_back(running(keep - 1).request.id);
    }
    plan.clear();
    return false;
  }

  // Makes runs of the first `keep`. Gives rows to those that want one token, of which there are
  // never more than rows, then to the others, in rank. A run may get none. Prompts that the best
  // waiting request outranks leave it the rows that it wants, all but one.
  void share_rows(std::size_t keep, std::vector<PlannedRun>& runs) {
    runs.clear();
    budget_ = RowBudget(max_rows_);
    StepWork single;
    bool generates = false;
    for (std::size_t i = 0; i < keep; ++i) {
      const std::int32_t pending = pending_tokens(running(i));
      const std::int32_t first = sequences_.num_computed(running(i).running_sequence());
      runs.push_back(make_run(running(i), first, pending));
      if (pending == 1) {
        budget_.take_single();
        generates = generates || first >= running(i).prompt_tokens;
        single = {.rows = single.rows + 1, .pairs = single.pairs + first + 1};
      }
    }
    const StepPace& pace = state_.pace;
    if (generates && bounded_) {
      budget_.bound(seconds_within_gap(pace.fixed_seconds + pace.seconds(single)), pace);
    }
    const std::int32_t held = std::min(held_, std::max(budget_.rows() - 1, 0));
    bool first_prompt = true;
    for (std::size_t i = 0; i < keep; ++i) {
      PlannedRun& run = runs[i];
      if (run.count > 1) {
        const std::int32_t free = budget_.rows() - (i >= ranking_.first_outranked() ? held : 0);
        run.count = budget_.take(run.first, std::clamp(free, 0, run.count), first_prompt);
        first_prompt = first_prompt && run.count == 0;
      }
    }
  }

  // Returns the seconds that prompts may add to a step which takes `plain` seconds without them.
  // Steps aim at the bound. Late ones may exceed it by another plain step, of which half is kept,
  // as nobody knows exactly how late they are.
  [[nodiscard]] double seconds_within_gap(double plain) const {
    const double bound = state_.config.max_gap_seconds;
    return std::min(bound, (bound + plain / 2) / (1 + state_.pace.lateness)) - plain;
  }

  // Fits blocks to the first `keep` if the KV of `dropped` were gone. Returns false when one that
  // got rows cannot have a single one of them.
  bool fit_blocks(std::size_t keep, std::span<const SeqId> dropped, std::vector<PlannedRun>& runs) {
    share_rows(keep, runs);
    room_ = RoomLeft(ledger_, dropped);
    for (std::size_t i = 0; i < keep; ++i) {
      PlannedRun& run = runs[i];
      const SeqId id = running(i).running_sequence();
      const std::int32_t count = room_.rows_that_fit(id, run.count);
      if (run.count > 0 && count == 0) {
        return false;
      }
      room_.take(room_.need_of(id, count));
      run = make_run(running(i), run.first, count);
    }
    std::erase_if(runs, [](const PlannedRun& run) { return run.count == 0; });
    return true;
  }

  void admit(StepPlan& plan) {
    const auto places = static_cast<std::size_t>(
        std::min(state_.config.max_running, state_.config.max_batch_tokens));
    for (const QueuedRequest* waiting : ranking_.waiting()) {
      if (state_.running.size() + plan.admit.size() >= places || budget_.rows() <= 0 ||
          !admit_one(*waiting, plan)) {
        break;
      }
    }
    if (state_.running.empty() && plan.admit.empty() && !ranking_.waiting().empty()) {
      plan.stuck = ranking_.waiting().front()->request.id;
    }
  }

  // Admits a waiting request if there is room. A prompt takes all rows until it is done, so no
  // lower rank is admitted meanwhile. Only decoding and higher ranks can take its blocks away.
  // Cached blocks that it attaches are no longer evictable, so they count as taken. Two that attach
  // the same ones pay twice here; at worst the second waits for the next step.
  bool admit_one(const QueuedRequest& waiting, StepPlan& plan) {
    const bool brings = brings_kv(waiting, sequences_);
    const kv::PrefixMatch match = brings ? kv::PrefixMatch{} : find_known_kv(waiting, ledger_);
    const bool alone = state_.running.size() + plan.admit.size() == 0;
    plan.slowed = !alone && slows(waiting, match, room_, ledger_);
    if (plan.slowed || !has_room(waiting, match, room_, alone, ledger_)) {
      return false;
    }
    if (brings) {
      const SeqId id = waiting.running_sequence();
      const std::int32_t first = sequences_.num_computed(id);
      if (waiting.kept > first) {  // as below
        room_.take(room_.need_of(id, waiting.kept - first));
        plan.admit.push_back(waiting.request.id);
        return true;
      }
      const std::int32_t count = room_.rows_that_fit(
          id, budget_.take(first, std::min(pending_tokens(waiting), budget_.rows()),
                           nothing_runs(plan)));
      room_.take(room_.need_of(id, count));
      admit_rows(waiting, first, count, plan);
      return true;
    }
    const std::int64_t block_tokens = ledger_.config().block_tokens;
    if (waiting.kept > match.tokens) {  // its KV comes back; the next plan goes on behind it
      room_.attach(match);
      const std::int64_t whole =
          (waiting.kept + block_tokens - 1) / block_tokens - match.tokens / block_tokens;
      room_.take(
          {.own = std::min(
               whole, ledger_.min_blocks(waiting.kept, behind_window_of(waiting, sequences_)))});
      plan.admit.push_back(waiting.request.id);
      return true;
    }
    const std::int64_t fresh = room_.own() - match.evictable_blocks;
    const std::int64_t tail = match.tokens % block_tokens;
    const auto wanted = static_cast<std::int32_t>(
        std::min({std::int64_t{wanted_tokens(waiting) - match.tokens}, std::int64_t{budget_.rows()},
                  fresh * block_tokens - tail}));
    const std::int32_t count = budget_.take(match.tokens, wanted, nothing_runs(plan));
    room_.attach(match);
    room_.take({.own = (tail + count + block_tokens - 1) / block_tokens,
                .open = ledger_.config().open_format() ? 1 : 0});
    admit_rows(waiting, match.tokens, count, plan);
    return true;
  }

  // Returns whether no prompt has got rows: then the next one gets one, however short the time is.
  [[nodiscard]] bool nothing_runs(const StepPlan& plan) const {
    return std::ranges::none_of(plan.runs, [](const PlannedRun& run) { return run.count > 1; });
  }

  void admit_rows(const QueuedRequest& waiting, std::int32_t first, std::int32_t count,
                  StepPlan& plan) const {
    plan.admit.push_back(waiting.request.id);
    if (count > 0) {
      plan.runs.push_back(make_run(waiting, first, count));
    }
  }

  const SchedulerState& state_;
  const kv::Ledger& ledger_;
  const kv::Sequences& sequences_;
  const std::int32_t max_rows_;
  const bool bounded_;
  const Ranking ranking_;
  std::int32_t held_ = 0;  // rows that are kept for the best waiting request
  RowBudget budget_;
  RoomLeft room_;
};

}  // namespace

void make_plan(const SchedulerState& state, StepPlan& plan) { Planner(state).make(plan); }

std::int64_t make_plan_of_any_rows(const SchedulerState& state, StepPlan& plan) {
  Planner planner(state, std::numeric_limits<std::int32_t>::max() / 2);
  planner.make(plan);
  return planner.blocks_left();
}

}  // namespace quire::sched
