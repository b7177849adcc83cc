#include "quire/engine/step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/base/check.h"
#include "quire/base/stopwatch.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/hooks.h"
#include "quire/engine/running_step.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_branches.h"
#include "quire/engine/step_choices.h"
#include "quire/engine/step_drafts.h"
#include "quire/engine/step_host_points.h"
#include "quire/engine/step_loads.h"
#include "quire/engine/step_points.h"
#include "quire/engine/step_room.h"
#include "quire/engine/step_state.h"
#include "quire/engine/step_swaps.h"
#include "quire/engine/stored_rows.h"
#include "quire/model/forward_batch.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::int64_t kToldRows = 64;  // rows of a step that says between its layers how far it is

// Returns whether the run computes the last token that its sequence has.
bool reaches_end(Step& step, const sched::ScheduledRun& run) {
  return run.first + run.count == std::ssize(step.core.ledger.sequences().tokens(run.sequence));
}

// Returns how many of the run's last rows have their logits computed.
std::int32_t logit_rows(Step& step, const sched::ScheduledRun& run, const NewRequest& request) {
  switch (request.kind) {
    case RequestKind::kForwardAll:
      return std::clamp(run.first + run.count - request.first_logit, 0, run.count);
    case RequestKind::kForwardLast:
      return reaches_end(step, run) ? 1 : 0;
    case RequestKind::kPrefill:
      return 0;
    case RequestKind::kGenerate:
      break;
  }
  return run.samples ? 1 + run.assumed : 0;
}

// Books the run's KV and its token.
void settle_run(Step& step, const sched::ScheduledRun& run, std::size_t index) {
  if (step.now.requests[index] == nullptr) {
    return;  // the request has ended with the step before
  }
  ActiveRequest& active = *step.now.requests[index];
  if (const Status loaded = check_loaded(step, run); !loaded.ok()) {
    fail_request(step, run.request, loaded.error());  // its KV and token were computed over rubbish
    return;
  }
  sched::ScheduledRun known = run;  // the rows whose tokens turned out to be certain
  known.count -= run.assumed;
  Status stored = check_state(step, known);  // first: a bad state makes KV bad behind it
  if (stored.ok()) {
    stored = check_stored(step, known, index);
  }
  if (!stored.ok()) {
    fail_request(step, run.request, stored.error());
    return;
  }
  tell_stored(step, known, index);
  bool ends = false;
  if (run.samples) {
    const std::size_t before = active.num_sampled();
    ends = accept_sampled(step, run, index);
    const auto added = static_cast<std::int32_t>(active.num_sampled() - before);
    Status fine = active.text_status();
    if (!ends && fine.ok()) {
      fine = std::move(step.sampled[index].status);
    }
    if (!fine.ok()) {
      fail_request(step, run.request, std::move(fine).error());
      return;
    }
    known.count += added - 1;
    note_right_rows(step, index, added - 1);
    step.core.counters.tokens_generated += added;
    if (before == 0) {
      step.core.counters.first_token_times.add(active.timing().first_token_seconds);
    }
    step.touched.push_back(&active);
  } else {
    ends = reaches_end(step, run);  // the prompt was all that was wanted
    step.core.scheduler.complete(run, std::nullopt);
  }
  keep_points(step, known, ends);
  active.channel()->note_computed(known.first + known.count);
  if (ends) {
    learn_output(step, active, run.sequence);
    active.note_computed(run.sequence);
    step.core.scheduler.finish(run.request);
    if (step.speculation != nullptr) {
      step.speculation->source().forget(run.request);  // stats() shows it before the caller goes on
    }
    step.core.counters.requests_finished += 1;
    step.finished.push_back(&active);
  }
}

// Called between the layers of a step that is launched.
struct LayerTurn {
  Step& step;
  RunningStep& running;
  const std::vector<KvGate::LoadRef>& awaited;
  bool tells = false;  // true: the step tells how far prompts are

  void before(int layer) const {
    for (const KvGate::LoadRef& load : awaited) {
      load->wait(layer);  // the end of the load is seen behind the step
    }
    if (tells) {
      tell(layer);
    }
  }

 private:
  void tell(int layer) const {
    const std::int64_t layers = step.core.decoder().config().layers;
    for (std::size_t i = 0; i < running.runs.size(); ++i) {
      const sched::ScheduledRun& run = running.runs[i];
      running.requests[i]->channel()->note_computed(run.first +
                                                    std::int64_t{run.count} * layer / layers);
    }
    step.stats.show_computed(step.core.counters.tokens_computed +
                             rows_of(running) * layer / layers);
  }
};

}  // namespace

bool plan_step(Step& step) {
  coalesce(step, false);
  do {
    step.plan = step.core.scheduler.plan(std::move(step.plan));
  } while (note_host_points(step));
  const bool lacks_blocks = step.plan.stuck || step.plan.preempts();
  if ((lacks_blocks && coalesce(step, true)) || (step.plan.stuck && may_get_blocks(step))) {
    return false;  // plans again, with more blocks
  }
  if (step.plan.stuck) {
    Error refusal = no_room_for(step, step.requests.at(*step.plan.stuck));
    step.requests.tell(LogLevel::kError, *step.plan.stuck, refusal.message);
    fail_request(step, *step.plan.stuck, std::move(refusal));
    return false;
  }
  draft_tokens(step);
  swap_out(step);
  const auto runs = step.core.scheduler.commit(step.plan);
  note_plan(step);
  const bool changed = step.plan.preempts() || !step.plan.admit.empty();
  if (!runs.ok() && runs.error().code == ErrorCode::kOutOfBlocks && changed) {
    swap_in(step);
    return false;  // plans again, knowing which slabs are free
  }
  QUIRE_CHECK(runs.ok(), "a fresh plan could not be committed");
  step.now.runs.assign(runs->begin(), runs->end());
  swap_in(step);
  for (const sched::ScheduledRun& run : step.now.runs) {
    step.now.requests.push_back(&step.requests.at(run.request));
  }
  open_branches(step);
  return !step.now.runs.empty();
}

Status launch_step(Step& step, RunningStep& running, base::Stopwatch& watch) {
  step.wanted_logits.clear();
  for (std::size_t i = 0; i < running.runs.size(); ++i) {
    step.wanted_logits.push_back(logit_rows(step, running.runs[i], running.requests[i]->request()));
  }
  for (const StepBranch& branch : running.branches) {
    step.wanted_logits.push_back(branch.rows.count);
  }
  model::ForwardBatch batch = step.builder.build(all_runs(step, running), step.wanted_logits,
                                                 step.core.ledger, assumed_rows(step, running));
  QUIRE_TRY_STATUS(add_states(step, running, batch));
  running.logits.assign(step.builder.logit_ranges().begin(), step.builder.logit_ranges().end());
  const std::vector<KvGate::LoadRef> awaited = awaited_loads(step, running.runs);
  // A device that chooses tokens is given all layers at once.
  const bool tells = rows_of(running) >= kToldRows && !step.core.decoder().chooses();
  const LayerTurn turn{.step = step, .running = running, .awaited = awaited, .tells = tells};
  const std::function<void(int)> before_layer = [&turn](int layer) { turn.before(layer); };
  if (turn.tells || !awaited.empty()) {
    batch.before_layer = &before_layer;
  }
  if (measures_kv(step, running)) {
    running.kv_errors.assign(static_cast<std::size_t>(rows_of(running)), {});
    batch.kv_errors = running.kv_errors;
  }
  running.reads_files = running.reads_files || !awaited.empty();
  if (step.core.decoder().chooses()) {
    offer_choices(step, running, batch);
  }
  if (running.ahead) {
    take_tokens_from_device(step, batch);
  }
  watch.lap(step.core.counters.build_seconds);
  QUIRE_TRY_STATUS(step.core.decoder().launch(batch, step.core.views_of(batch.num_formats)));
  running.launched = true;
  watch.lap(step.core.counters.forward_seconds);
  return {};
}

Status await_step(Step& step, std::span<float>& logits, base::Stopwatch& watch) {
  QUIRE_TRY(logits, step.core.decoder().await());
  watch.lap(step.core.counters.forward_seconds);
  return {};
}

void count_computed(Step& step, double seconds) {
  const std::int64_t rows = rows_of(step.now);
  EngineStats& counters = step.core.counters;
  counters.tokens_computed += rows;
  const attention::PlanCounters read = step.core.decoder().last_counters();
  counters.attention.entries += read.entries;
  counters.attention.rows += read.rows;
  counters.attention.blocks_read += read.blocks_read;
  counters.forward_host_seconds += step.core.decoder().last_timing().host;
  for (StepListener* listener : step.hooks->listeners) {
    listener->computed({.rows = rows,
                        .forward_seconds = seconds,
                        .alone = !step.now.reads_files && !step.now.ahead});
  }
}

void note_admissions(Step& step) {
  for (std::size_t i = 0; i < step.now.runs.size(); ++i) {
    ActiveRequest& active = *step.now.requests[i];
    if (!active.admitted()) {
      step.core.counters.tokens_reused += step.requests.admit(active);
      step.core.counters.queue_times.add(active.timing().queue_seconds);
    }
  }
}

void settle_step(Step& step) {
  for (std::size_t i = 0; i < step.now.runs.size(); ++i) {
    settle_run(step, step.now.runs[i], i);
  }
  advance_states(step);
  step.core.counters.steps += 1;
  step.core.counters.steps_ahead += step.now.ahead ? 1 : 0;
}

void deliver_step(Step& step) {
  close_branches(step, step.now);
  step.stats.refresh(step.core, step.requests.waiting_since());
  step.stats.measure(step.core.counters);
  for (ActiveRequest* active : step.touched) {
    active->deliver();
  }
  for (ActiveRequest* active : step.finished) {
    step.next.forget(active);
    step.requests.finish(*active);
  }
  step.touched.clear();
  step.finished.clear();
  std::swap(step.now, step.next);
  step.next.clear();
}

void drop_steps(Step& step) {
  step.core.decoder().abandon();
  close_branches(step, step.now);
  step.now.clear();
  step.next.clear();
}

void fail_request(Step& step, RequestId id, Error error) {
  step.next.forget(&step.requests.at(id));
  step.requests.fail(id, std::move(error));
}

}  // namespace quire::engine
