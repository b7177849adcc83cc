#include "quire/engine/step_swaps.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "quire/base/ids.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/hooks.h"
#include "quire/engine/running_step.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_host_points.h"
#include "quire/engine/step_loads.h"
#include "quire/engine/step_state.h"
#include "quire/engine/swap_space.h"
#include "quire/kv/ledger.h"
#include "quire/kv/preemption.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/restored_kv.h"
#include "quire/options.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Returns the tokens behind which a sequence would be computed again: its last restore point.
std::int32_t last_point(Step& step, SeqId sequence, std::int32_t tokens) {
  if (!step.core.ledger.points().exist()) {
    return 0;
  }
  const auto known = step.core.ledger.points().known(sequence);
  return known.empty() ? 0 : std::min(known.back().tokens, tokens);
}

// Returns whether moving so many tokens there and back, and the state behind them, takes less time
// than computing those behind the last restore point.
bool swap_pays(Step& step, SeqId sequence, std::int32_t tokens) {
  if (!step.core.swap_space.block_seconds()) {
    step.core.swap_space.measure(step.core.paged_pool);
  }
  const std::optional<double> block_seconds = step.core.swap_space.block_seconds();
  const sched::StepPace& pace = step.pace.pace();
  if (!block_seconds || pace.measured_rows == 0) {
    return false;
  }
  const double blocks = static_cast<double>(SwapSpace::bytes_of(
                            sequence, step.core.ledger, step.core.paged_pool, step.core.states)) /
                        static_cast<double>(step.core.paged_pool.geometry().block_bytes());
  const std::int32_t first = last_point(step, sequence, tokens);
  return 2.0 * blocks * *block_seconds < pace.seconds(sched::work_of(first, tokens - first));
}

// Makes room for KV of `kept` tokens, of which the first `without_part` blocks have no window part.
bool make_room(Step& step, SeqId sequence, std::int32_t kept, std::int32_t without_part) {
  kv::Ledger& ledger = step.core.ledger;
  const bool begun = without_part == 0 ||
                     ledger.restored_kv().begin_without_parts(sequence, kept, without_part).ok();
  if (!begun) {
    return false;
  }
  const std::int32_t first = ledger.sequences().num_computed(sequence);
  const bool made =
      ledger.sequences().extend(sequence, kept - first).ok() && copy_blocks(step).ok();
  if (!made && without_part > 0) {  // the first blocks have no KV yet
    ledger.preemption().drop_kv(sequence);
    (void)ledger.preemption().reattach(sequence);
  }
  return made;
}

void restore(Step& step, RequestId id, SeqId sequence, std::int32_t kept) {
  EngineCore& core = step.core;
  const std::int32_t first = core.ledger.sequences().num_computed(sequence);
  core.ledger.points().drop_owed(sequence);  // blocks of others are not written
  const bool begins_block =
      first % core.ledger.config().block_tokens == 0 || core.ledger.points().lacks_tail(sequence);
  const std::int32_t without_part = core.swap_space.without_part(id);
  if (first >= kept || !begins_block || !make_room(step, sequence, kept, without_part)) {
    core.swap_space.forget(id);
    return;
  }
  const std::int32_t begun = core.ledger.sequences().num_computed(sequence);
  if (!core.swap_space.restore(id, sequence, first, core.ledger, core.paged_pool, core.states)
           .ok()) {
    return;
  }
  core.scheduler.complete(
      {.request = id, .sequence = sequence, .first = begun, .count = kept - begun}, std::nullopt);
  if (core.ledger.points().exist()) {
    core.ledger.points().note_brought(sequence, begun);
  }
  if (without_part > 0) {
    core.ledger.restored_kv().publish(sequence);
  }
  core.counters.swaps_restored += 1;
}

}  // namespace

void swap_out(Step& step) {
  if (step.swap == SwapMode::kNever || !step.plan.preempts() || !step.hooks->kv_gate->idle()) {
    return;
  }
  EngineCore& core = step.core;
  for (const auto* preempted : {&step.plan.preempt, &step.plan.make_way}) {
    for (const RequestId id : *preempted) {
      const std::optional<SeqId> sequence = core.scheduler.sequence(id);
      const std::int32_t tokens = sequence ? core.ledger.sequences().num_computed(*sequence) : 0;
      if (!sequence || tokens == 0 ||
          (step.swap == SwapMode::kAuto && !swap_pays(step, *sequence, tokens))) {
        continue;
      }
      const std::int32_t kept =
          core.swap_space.keep(id, *sequence, core.ledger, core.paged_pool, core.states);
      core.scheduler.note_kept(id, kept);
      core.counters.preemptions_swapped += kept > 0 ? 1 : 0;
    }
  }
}

void swap_in(Step& step) {
  for (const RequestId id : step.plan.admit) {
    const std::int32_t kept = step.core.swap_space.kept(id);
    const std::optional<SeqId> sequence = step.core.scheduler.sequence(id);
    if (sequence && step.core.scheduler.kept(id) > 0) {
      kept > 0 ? restore(step, id, *sequence, kept) : bring_back(step, id, *sequence);
      step.core.scheduler.note_kept(id, 0);
    }
  }
}

void note_plan(Step& step) {
  step.core.plan_log.note(step.plan);
  step.core.counters.admissions_slowed += step.plan.slowed ? 1 : 0;
  for (const auto* preempted : {&step.plan.preempt, &step.plan.make_way}) {
    step.core.counters.preemptions += std::ssize(*preempted);
    for (const RequestId id : *preempted) {
      step.requests.tell(
          LogLevel::kWarning, id,
          step.core.swap_space.kept(id) > 0
              ? "preempted: it gives its blocks to others, and its KV waits in host memory"
              : "preempted: it gives its blocks to others and is computed again later");
    }
  }
}

void note_decision(Step& step, double seconds) {
  step.core.plan_log.add(step.core.counters.steps, rows_of(step.now), seconds);
  if (step.now.reads_files || step.now.ahead) {
    return;
  }
  sched::StepWork work;
  for (const sched::ScheduledRun& run : step.now.runs) {
    const sched::StepWork more = sched::work_of(run.first, run.count);
    work = {.rows = work.rows + more.rows, .pairs = work.pairs + more.pairs};
  }
  // Prompts of a draft model take what a step has left, so a plan does not foresee them.
  const double prompts = step.speculation == nullptr ? 0 : step.speculation->prompt_seconds;
  step.pace.add(work, seconds - prompts);
  step.core.scheduler.set_pace(step.pace.pace());
}

void end_overdue(Step& step) {
  while (const auto id = step.requests.overdue(Clock::now())) {
    step.requests.tell(LogLevel::kWarning, *id, "ended by its deadline");
    step.now.forget(&step.requests.at(*id));
    step.next.forget(&step.requests.at(*id));
    step.requests.expire(*id);
  }
}

}  // namespace quire::engine
