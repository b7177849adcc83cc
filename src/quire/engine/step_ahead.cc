#include "quire/engine/step_ahead.h"

#include <algorithm>
#include <new>
#include <span>

#include "quire/base/stopwatch.h"
#include "quire/engine/hooks.h"
#include "quire/engine/step.h"
#include "quire/engine/step_drafts.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Returns whether nothing is to be done before the next step: a task, a copy, or KV on its way from
// a file. Models whose layers carry a state keep it for points between two steps.
bool may_run_ahead(const Step& step) {
  return step.hooks->kv_gate->idle() && !step.thread.has_tasks() &&
         !step.core.ledger.owes_copies() && !step.core.ledger.points().exist();
}

}  // namespace

void launch_ahead(Step& step, base::Stopwatch& watch) {
  if (!step.now.chosen_apart || !may_run_ahead(step) || wants_drafts(step)) {
    return;
  }
  const bool all_go_on = std::ranges::find(step.now.requests, nullptr) == step.now.requests.end();
  if (!all_go_on || !step.core.scheduler.repeat(step.now.runs, step.next.runs)) {
    return;
  }
  watch.lap(step.core.counters.schedule_seconds);
  step.next.requests = step.now.requests;
  step.next.ahead = true;
  try {
    if (!launch_step(step, step.next, watch).ok()) {
      step.next.clear();
    }
  } catch (const std::bad_alloc&) {
    step.next.clear();
  }
}

Status recompute_if_overtaken(Step& step, std::span<float>& logits, base::Stopwatch& watch) {
  const std::span<const TokenId> chosen = step.core.decoder().last_chosen();
  if (step.next.runs.empty() || std::ranges::find(chosen, -1) == chosen.end()) {
    return {};
  }
  step.core.decoder().abandon();
  step.next.clear();
  step.now.ahead = false;  // its own input has been booked meanwhile
  QUIRE_TRY_STATUS(launch_step(step, step.now, watch));
  QUIRE_TRY(logits, step.core.decoder().await());
  watch.lap(step.core.counters.forward_seconds);
  return {};
}

}  // namespace quire::engine
