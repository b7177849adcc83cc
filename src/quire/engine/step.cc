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
#include "quire/engine/step_loads.h"
#include "quire/engine/step_points.h"
#include "quire/engine/step_room.h"
#include "quire/engine/step_state.h"
#include "quire/engine/step_swaps.h"
#include "quire/engine/stored_rows.h"
#include "quire/kernels/choice.h"
#include "quire/model/forward_batch.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
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
  return run.samples ? 1 : 0;
}

// Tells the batch how each row's token is chosen and what changes in its logits before. So a device
// can do it where the logits are.
void offer_choices(Step& step, RunningStep& running, model::ForwardBatch& batch) {
  step.choices.assign(batch.logit_rows.size(), {});
  step.changes.clear();
  std::size_t apart = 0;
  for (std::size_t i = 0; i < running.runs.size(); ++i) {
    if (!running.runs[i].samples) {
      continue;
    }
    sampling::SampleContext context = running.requests[i]->sample_context();
    context.index += running.ahead ? 1 : 0;  // the token before is not booked yet
    const auto changes = step.samplers.front().changes(
        context, static_cast<std::size_t>(step.core.decoder().config().vocab_size));
    if (!changes.ok()) {  // Sampler::sample says what is wrong
      continue;
    }
    const std::int32_t row = running.logits[i].first;
    step.choices[static_cast<std::size_t>(row)] = sampling::choice_of(context);
    for (kernels::LogitChange change : *changes) {
      change.row = row;
      step.changes.push_back(change);
    }
    apart += sampling::penalises(*context.params) ? 0 : 1;
  }
  running.chosen_apart = apart == running.runs.size();
  batch.choices = step.choices;
  batch.changes = step.changes;
}

// Gives the batch the tokens of `now`, which the device has: the rows of `next` are those of `now`.
void take_tokens_from_device(Step& step, model::ForwardBatch& batch) {
  step.ids_from.clear();
  for (const LogitRange& logits : step.now.logits) {
    step.ids_from.push_back(logits.first);
  }
  batch.ids_from = step.ids_from;
}

// Returns the token that the device has chosen for a row.
sampling::SampledToken chosen_token(Step& step, std::size_t row,
                                    std::optional<std::int32_t> logprobs) {
  sampling::SampledToken token{.id = step.core.decoder().last_chosen()[row], .logprobs = {}};
  if (logprobs) {
    const auto told = step.core.decoder().last_logprobs(row);
    const auto most_likely =
        static_cast<std::size_t>(std::min(*logprobs, step.core.decoder().config().vocab_size));
    token.logprobs.reserve(most_likely + 1);
    for (const auto& [id, logprob] : told.subspan(1, most_likely)) {
      token.logprobs.emplace_back(id, logprob);
    }
    token.add_chosen(told.front().logprob);
  }
  return token;
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
  if (const Status stored = check_stored(step, run, index); !stored.ok()) {
    fail_request(step, run.request, stored.error());
    return;
  }
  tell_stored(step, run, index);
  auto& sampled = step.sampled[index];
  if (sampled && !sampled->ok()) {
    step.core.scheduler.complete(run, std::nullopt);
    fail_request(step, run.request, std::move(*sampled).error());
    return;
  }
  bool ends = false;
  if (sampled) {
    step.core.scheduler.complete(run, (*sampled)->id);
    ends = active.accept(std::move(*sampled).value());
    if (Status text = active.text_status(); !text.ok()) {
      fail_request(step, run.request, std::move(text).error());
      return;
    }
    step.core.counters.tokens_generated += 1;
    if (active.num_sampled() == 1) {
      step.core.counters.first_token_times.add(active.timing().first_token_seconds);
    }
    step.touched.push_back(&active);
  } else {
    ends = reaches_end(step, run);  // the prompt was all that was wanted
    step.core.scheduler.complete(run, std::nullopt);
  }
  keep_points(step, run, ends);
  active.channel()->note_computed(run.first + run.count);
  if (ends) {
    active.note_computed(run.sequence);
    step.core.scheduler.finish(run.request);
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
  step.plan = step.core.scheduler.plan(std::move(step.plan));
  if (step.plan.stuck && may_get_blocks(step)) {
    return false;  // plans again
  }
  if (step.plan.stuck) {
    Error refusal = no_room_for(step, step.requests.at(*step.plan.stuck));
    step.requests.tell(LogLevel::kError, *step.plan.stuck, refusal.message);
    fail_request(step, *step.plan.stuck, std::move(refusal));
    return false;
  }
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
  return !step.now.runs.empty();
}

Status launch_step(Step& step, RunningStep& running, base::Stopwatch& watch) {
  step.wanted_logits.clear();
  for (std::size_t i = 0; i < running.runs.size(); ++i) {
    step.wanted_logits.push_back(logit_rows(step, running.runs[i], running.requests[i]->request()));
  }
  model::ForwardBatch batch =
      step.builder.build(running.runs, step.wanted_logits, step.core.ledger);
  QUIRE_TRY_STATUS(add_states(step, running, batch));
  running.logits.assign(step.builder.logit_ranges().begin(), step.builder.logit_ranges().end());
  const std::vector<KvGate::LoadRef> awaited = awaited_loads(step, running.runs);
  // A device that chooses tokens is given all layers at once.
  const bool prefills = rows_of(running) >= kToldRows;
  const LayerTurn turn{.step = step,
                       .running = running,
                       .awaited = awaited,
                       .tells = prefills && !step.core.decoder().chooses()};
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

void sample_step(Step& step, std::span<float> logits) {
  const std::span<const sched::ScheduledRun> runs = step.now.runs;
  const std::span<const TokenId> chosen = step.core.decoder().last_chosen();
  const auto vocab = static_cast<std::size_t>(step.core.decoder().config().vocab_size);
  step.sampled.assign(runs.size(), std::nullopt);
  std::size_t left = 0;
  const auto rows_of = [&](std::size_t i) {
    const LogitRange range = step.now.logits[i];
    return logits.subspan(static_cast<std::size_t>(range.first) * vocab,
                          static_cast<std::size_t>(range.count) * vocab);
  };
  const auto samples = [&](std::size_t i) {
    return runs[i].samples && step.now.requests[i] != nullptr && !step.sampled[i];
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ActiveRequest* active = step.now.requests[i];
    if (active != nullptr && active->kind() != RequestKind::kGenerate && !rows_of(i).empty()) {
      const std::int32_t first = runs[i].first + runs[i].count - step.now.logits[i].count;
      active->add_logits(first, rows_of(i), static_cast<std::int64_t>(vocab));
    }
    if (samples(i)) {
      const auto row = static_cast<std::size_t>(step.now.logits[i].first);
      if (!chosen.empty() && chosen[row] >= 0) {
        step.sampled[i] = chosen_token(step, row, active->request().params.logprobs);
      } else {
        ++left;
      }
    }
  }
  if (left == 0) {
    return;
  }
  step.pool.run(static_cast<int>(runs.size()), [&](int item, int thread) {
    const auto i = static_cast<std::size_t>(item);
    if (samples(i)) {
      step.sampled[i] = step.samplers[static_cast<std::size_t>(thread)].sample(
          rows_of(i), step.now.requests[i]->sample_context());
    }
  });
}

void settle_step(Step& step) {
  for (std::size_t i = 0; i < step.now.runs.size(); ++i) {
    settle_run(step, step.now.runs[i], i);
  }
  step.core.counters.steps += 1;
  step.core.counters.steps_ahead += step.now.ahead ? 1 : 0;
}

void deliver_step(Step& step) {
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
  step.now.clear();
  step.next.clear();
}

void fail_request(Step& step, RequestId id, Error error) {
  step.next.forget(&step.requests.at(id));
  step.requests.fail(id, std::move(error));
}

}  // namespace quire::engine
