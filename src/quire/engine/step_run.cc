#include "quire/engine/step_run.h"

#include <chrono>
#include <span>

#include "quire/base/stopwatch.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/step.h"
#include "quire/engine/step_ahead.h"
#include "quire/engine/step_choices.h"
#include "quire/engine/step_drafts.h"
#include "quire/engine/step_loads.h"
#include "quire/engine/step_state.h"
#include "quire/engine/step_swaps.h"
#include "quire/result.h"

namespace quire::engine {
namespace {

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

Status compute_next(Step& step) {
  const auto start = Clock::now();
  EngineStats& counters = step.core.counters;
  base::Stopwatch watch;
  end_overdue(step);
  if (step.now.runs.empty() && !plan_step(step)) {
    return {};
  }
  watch.lap(counters.schedule_seconds);
  const double before = counters.forward_seconds;
  if (!step.now.launched) {
    QUIRE_TRY_STATUS(copy_blocks(step));
    note_admissions(step);
    QUIRE_TRY_STATUS(launch_step(step, step.now, watch));
  }
  launch_ahead(step, watch);
  std::span<float> logits;
  QUIRE_TRY_STATUS(await_step(step, logits, watch));
  QUIRE_TRY_STATUS(recompute_if_overtaken(step, logits, watch));
  sample_step(step, logits);
  count_computed(step, counters.forward_seconds - before);
  watch.lap(counters.sample_seconds);
  settle_step(step);
  watch.lap(counters.settle_seconds);
  const double seconds = seconds_between(start, Clock::now());
  counters.step_seconds += seconds;
  counters.step_times.add(seconds);
  note_decision(step, seconds);
  note_cost(step, seconds);
  deliver_step(step);
  watch.lap(counters.deliver_seconds);
  return {};
}

}  // namespace quire::engine
