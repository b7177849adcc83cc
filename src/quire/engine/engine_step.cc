// One step of the engine: plan, commit, launch, await, sample, settle, deliver. Engine thread only.
//
// Where a device chooses the tokens, the next step is launched before this one is awaited
// (launch_next), if it is this one over again whatever is chosen: then the host's work is done
// while the device computes. Invariants
//   1. At most two steps are launched: now_, which ends next, and next_ behind it.
//   2. The ledger knows the tokens of now_ when now_ has been awaited, not before. For next_ it has
//      made room and nothing else.
//   3. Tasks run while nothing is launched.
//   4. A request that ends with now_ gives its blocks back at once. What next_ still writes there
//      is written before anything that is launched or copied later.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/plan.h"
#include "quire/base/check.h"
#include "quire/base/no_memory.h"
#include "quire/base/stopwatch.h"
#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine.h"
#include "quire/engine/hooks.h"
#include "quire/kernels/choice.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/scheduler.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

// Returns whether blocks may have come back since the plan was made: with a chunk that waited for
// the disk, or with a task.
bool Engine::may_get_blocks() { return await_blocks() || thread_.has_tasks(); }

void RunningStep::clear() {
  runs.clear();
  requests.clear();
  logits.clear();
  launched = ahead = chosen_apart = reads_files = false;
}

void RunningStep::forget(ActiveRequest* ended) {
  std::ranges::replace(requests, ended, static_cast<ActiveRequest*>(nullptr));
}

// A step that fails ends its requests, wherever it was. What they had computed and booked is right.
void Engine::step() {
  Status done;
  try {
    done = try_step();
  } catch (const std::bad_alloc&) {
    done = base::no_memory("a step: its activations, or what its requests have got so far");
  }
  if (done.ok()) {
    return;
  }
  touched_.clear();
  finished_.clear();
  drop_steps();
  fail_all(done.error());
  if (std::exchange(copies_lost_, false)) {
    (void)
        core_->ledger.clear_cache();  // some of it was to be moved, and requests may have found it
    publish_stats();
  }
}

Status Engine::try_step() {
  const auto start = Clock::now();
  base::Stopwatch watch;
  if (now_.runs.empty() && !plan_step()) {
    return {};
  }
  watch.lap(core_->counters.schedule_seconds);
  QUIRE_TRY_STATUS(compute(watch));
  for (std::size_t i = 0; i < now_.runs.size(); ++i) {
    settle(now_.runs[i], i);
  }
  core_->counters.steps += 1;
  core_->counters.steps_ahead += now_.ahead ? 1 : 0;
  watch.lap(core_->counters.settle_seconds);
  core_->counters.step_seconds += seconds_between(start, Clock::now());
  deliver_all();
  std::swap(now_, next_);
  next_.clear();
  watch.lap(core_->counters.deliver_seconds);
  return {};
}

// For a request that nothing can run beside. It needs more than there is, and a prompt its blocks.
Error Engine::no_room_for(const ActiveRequest& stuck) const {
  const std::int64_t free_blocks = core_->ledger.blocks_available();
  const std::int64_t needed =
      std::max(core_->ledger.min_blocks(std::ssize(stuck.request().prompt)), free_blocks + 1);
  return {.code = ErrorCode::kOutOfBlocks,
          .message =
              base::str_cat("the request does not fit now: it needs ", needed, " blocks or more, ",
                            free_blocks, " of ", core_->ledger.counts().blocks_total,
                            " can be had; unpin or delete something, or raise kv_budget"),
          .needed_bytes = needed * core_->counters.block_bytes,
          .free_bytes = free_blocks * core_->counters.block_bytes};
}

// Fills now_. False when there is nothing to compute.
bool Engine::plan_step() {
  plan_ = core_->scheduler.plan(std::move(plan_));
  if (plan_.stuck && may_get_blocks()) {
    return false;  // plans again
  }
  if (plan_.stuck) {
    fail_request(*plan_.stuck, no_room_for(active_.at(plan_.stuck->value)));
    return false;
  }
  const auto runs = core_->scheduler.commit(plan_);
  QUIRE_CHECK(runs.ok(), "a fresh plan could not be committed");
  now_.runs.assign(runs->begin(), runs->end());
  core_->counters.preemptions += static_cast<std::int64_t>(plan_.preempt.size());
  for (const sched::ScheduledRun& run : now_.runs) {
    now_.requests.push_back(&active_.at(run.request.value));
  }
  return !now_.runs.empty();
}

// Waits for the device, and forgets what was launched.
void Engine::drop_steps() {
  core_->decoder().abandon();
  now_.clear();
  next_.clear();
}

// True when the run computes the last token that its sequence has.
bool Engine::reaches_end(const sched::ScheduledRun& run) const {
  return run.first + run.count == std::ssize(core_->ledger.tokens(run.sequence));
}

// How many of the run's last rows.
std::int32_t Engine::wanted_logits(const sched::ScheduledRun& run,
                                   const NewRequest& request) const {
  switch (request.kind) {
    case RequestKind::kForwardAll:
      return std::clamp(run.first + run.count - request.first_logit, 0, run.count);
    case RequestKind::kForwardLast:
      return reaches_end(run) ? 1 : 0;
    case RequestKind::kPrefill:
      return 0;
    case RequestKind::kGenerate:
      break;
  }
  return run.samples ? 1 : 0;
}

// What the ledger has ordered. After an error nothing that is cached may be found any more.
Status Engine::copy_blocks() {
  Status status;
  copies_lost_ = true;  // until all are done
  for (const kv::BlockCopy& copy : core_->ledger.take_copies()) {
    if (!kv_gate_->idle()) {
      kv_gate_->before_copy(copy);
    }
    if (const Status copied = core_->shelves.copy(copy); !copied.ok()) {
      status = copied;
    }
  }
  copies_lost_ = !status.ok();
  return status;
}

// For what gets its blocks between two steps.
Status Engine::copy_blocks_now() {
  Status status = copy_blocks();
  if (std::exchange(copies_lost_, false)) {
    (void)core_->ledger.clear_cache();
  }
  return status;
}

// Fills sampled_ and the logits of forward requests.
Status Engine::compute(base::Stopwatch& watch) {
  const double before = core_->counters.forward_seconds;
  if (!now_.launched) {
    QUIRE_TRY_STATUS(begin(watch));
  }
  launch_next(watch);
  std::span<float> logits;
  QUIRE_TRY_STATUS(await(logits, watch));
  sample(logits);
  const auto rows = std::accumulate(
      now_.runs.begin(), now_.runs.end(), std::int64_t{0},
      [](std::int64_t sum, const sched::ScheduledRun& run) { return sum + run.count; });
  core_->counters.tokens_computed += rows;
  const attention::PlanCounters read = core_->decoder().last_counters();
  core_->counters.attention.entries += read.entries;
  core_->counters.attention.rows += read.rows;
  core_->counters.attention.blocks_read += read.blocks_read;
  core_->counters.forward_host_seconds += core_->decoder().last_timing().host;
  for (StepListener* listener : listeners_) {
    listener->computed({.rows = rows,
                        .forward_seconds = core_->counters.forward_seconds - before,
                        .alone = !now_.reads_files && !now_.ahead});
  }
  watch.lap(core_->counters.sample_seconds);
  return {};
}

// Launches a step that was planned just now.
Status Engine::begin(base::Stopwatch& watch) {
  QUIRE_TRY_STATUS(copy_blocks());
  for (std::size_t i = 0; i < now_.runs.size(); ++i) {
    ActiveRequest& active = *now_.requests[i];
    if (!active.admitted()) {
      const std::int64_t cached_tokens =
          core_->scheduler.progress(now_.runs[i].request).cached_tokens;
      core_->counters.tokens_reused += active.note_admission(cached_tokens);
    }
  }
  return launch(now_, watch);
}

Status Engine::launch(RunningStep& step, base::Stopwatch& watch) {
  wanted_logits_.clear();
  for (std::size_t i = 0; i < step.runs.size(); ++i) {
    wanted_logits_.push_back(wanted_logits(step.runs[i], step.requests[i]->request()));
  }
  model::ForwardBatch batch = builder_.build(step.runs, wanted_logits_, core_->ledger);
  step.logits.assign(builder_.logit_ranges().begin(), builder_.logit_ranges().end());
  const std::vector<KvGate::LoadRef> awaited = awaited_loads(step.runs);
  const std::function<void(int)> before_layer = [&awaited](int layer) {
    for (const KvGate::LoadRef& load : awaited) {
      load->wait(layer);  // how it ends is seen behind the step
    }
  };
  if (!awaited.empty()) {
    batch.before_layer = &before_layer;
    step.reads_files = true;
  }
  if (core_->decoder().chooses()) {
    offer_choices(step, batch);
  }
  if (step.ahead) {
    take_tokens_from_device(batch);
  }
  watch.lap(core_->counters.build_seconds);
  QUIRE_TRY_STATUS(core_->decoder().launch(batch, core_->views));
  step.launched = true;
  watch.lap(core_->counters.forward_seconds);
  return {};
}

// Launches the step behind now_, if it is that one again, a token further, whatever its tokens turn
// out to be. Rows of requests that end with now_ are computed for nothing. What cannot be launched
// here is planned when its turn comes, and if it fails then, it has failed.
void Engine::launch_next(base::Stopwatch& watch) {
  if (!now_.chosen_apart || !may_run_ahead()) {
    return;
  }
  const bool all_go_on = std::ranges::find(now_.requests, nullptr) == now_.requests.end();
  if (!all_go_on || !core_->scheduler.repeat(now_.runs, next_.runs)) {
    return;
  }
  watch.lap(core_->counters.schedule_seconds);
  next_.requests = now_.requests;
  next_.ahead = true;
  try {
    if (!launch(next_, watch).ok()) {
      next_.clear();
    }
  } catch (const std::bad_alloc&) {
    next_.clear();
  }
}

// Returns whether no task waits for the end of the step, and no KV is on its way from a file.
bool Engine::may_run_ahead() { return kv_gate_->idle() && !thread_.has_tasks(); }

// Waits for now_. A token that the device leaves to the host would need logits that are gone when
// next_ is behind: then both are dropped, and now_ is computed again.
Status Engine::await(std::span<float>& logits, base::Stopwatch& watch) {
  QUIRE_TRY(logits, core_->decoder().await());
  watch.lap(core_->counters.forward_seconds);
  const std::span<const TokenId> chosen = core_->decoder().last_chosen();
  if (next_.runs.empty() || std::ranges::find(chosen, -1) == chosen.end()) {
    return {};
  }
  core_->decoder().abandon();
  next_.clear();
  now_.ahead = false;  // its own input has been booked meanwhile
  QUIRE_TRY_STATUS(launch(now_, watch));
  QUIRE_TRY(logits, core_->decoder().await());
  watch.lap(core_->counters.forward_seconds);
  return {};
}

// Files that runs of the step are still read from.
std::vector<KvGate::LoadRef> Engine::awaited_loads(
    std::span<const sched::ScheduledRun> runs) const {
  std::vector<KvGate::LoadRef> awaited;
  if (kv_gate_->idle()) {
    return awaited;
  }
  for (const sched::ScheduledRun& run : runs) {
    for (const kv::RunView& view : core_->ledger.runs(run.sequence)) {
      kv_gate_->append_loads(view.blocks, awaited);
    }
  }
  return awaited;
}

// Whether the KV that the run has seen was what its files should have held.
Status Engine::check_arrived(const sched::ScheduledRun& run) const {
  if (kv_gate_->idle()) {
    return {};
  }
  for (const kv::RunView& view : core_->ledger.runs(run.sequence)) {
    QUIRE_TRY_STATUS(kv_gate_->outcome(view.blocks));
  }
  return {};
}

// How each row's token is chosen, and what of its logits changes before, so that a device can do it
// where the logits are.
void Engine::offer_choices(RunningStep& step, model::ForwardBatch& batch) {
  choices_.assign(batch.logit_rows.size(), {});
  changes_.clear();
  std::size_t apart = 0;
  for (std::size_t i = 0; i < step.runs.size(); ++i) {
    if (!step.runs[i].samples) {
      continue;
    }
    sampling::SampleContext context = step.requests[i]->sample_context();
    context.index += step.ahead ? 1 : 0;  // the token before is not booked yet
    const auto changes =
        samplers_.front().changes(context, static_cast<std::size_t>(model_config().vocab_size));
    if (!changes.ok()) {  // Sampler::sample says what is wrong
      continue;
    }
    const std::int32_t row = step.logits[i].first;
    choices_[static_cast<std::size_t>(row)] = sampling::choice_of(context);
    for (kernels::LogitChange change : *changes) {
      change.row = row;
      changes_.push_back(change);
    }
    apart += sampling::penalises(*context.params) ? 0 : 1;
  }
  step.chosen_apart = apart == step.runs.size();
  batch.choices = choices_;
  batch.changes = changes_;
}

// The rows of next_ are the rows of now_, and so are their tokens.
void Engine::take_tokens_from_device(model::ForwardBatch& batch) {
  ids_from_.clear();
  for (const LogitRange& logits : now_.logits) {
    ids_from_.push_back(logits.first);
  }
  batch.ids_from = ids_from_;
}

// Of a row whose token the device has chosen.
sampling::SampledToken Engine::chosen_token(std::size_t row,
                                            std::optional<std::int32_t> logprobs) const {
  sampling::SampledToken token{.id = core_->decoder().last_chosen()[row], .logprobs = {}};
  if (logprobs) {
    const auto told = core_->decoder().last_logprobs(row);
    const auto most_likely =
        static_cast<std::size_t>(std::min(*logprobs, model_config().vocab_size));
    token.logprobs.reserve(most_likely + 1);
    for (const auto& [id, logprob] : told.subspan(1, most_likely)) {
      token.logprobs.emplace_back(id, logprob);
    }
    token.add_chosen(told.front().logprob);
  }
  return token;
}

void Engine::sample(std::span<float> logits) {
  const std::span<const sched::ScheduledRun> runs = now_.runs;
  const std::span<const TokenId> chosen = core_->decoder().last_chosen();
  const auto vocab = static_cast<std::size_t>(model_config().vocab_size);
  sampled_.assign(runs.size(), std::nullopt);
  std::size_t left = 0;
  const auto rows_of = [&](std::size_t i) {
    const LogitRange range = now_.logits[i];
    return logits.subspan(static_cast<std::size_t>(range.first) * vocab,
                          static_cast<std::size_t>(range.count) * vocab);
  };
  const auto samples = [&](std::size_t i) {
    return runs[i].samples && now_.requests[i] != nullptr && !sampled_[i];
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ActiveRequest* active = now_.requests[i];
    if (active != nullptr && active->kind() != RequestKind::kGenerate && !rows_of(i).empty()) {
      const std::int32_t first = runs[i].first + runs[i].count - now_.logits[i].count;
      active->add_logits(first, rows_of(i), static_cast<std::int64_t>(vocab));
    }
    if (samples(i)) {
      const auto row = static_cast<std::size_t>(now_.logits[i].first);
      if (!chosen.empty() && chosen[row] >= 0) {
        sampled_[i] = chosen_token(row, active->request().params.logprobs);
      } else {
        ++left;
      }
    }
  }
  if (left == 0) {
    return;
  }
  pool_.run(static_cast<int>(runs.size()), [&](int item, int thread) {
    const auto i = static_cast<std::size_t>(item);
    if (samples(i)) {
      sampled_[i] = samplers_[static_cast<std::size_t>(thread)].sample(
          rows_of(i), now_.requests[i]->sample_context());
    }
  });
}

// Books the run's KV and its token; a request that ends here gives its blocks back.
void Engine::settle(const sched::ScheduledRun& run, std::size_t index) {
  if (now_.requests[index] == nullptr) {
    return;  // it has ended with the step before
  }
  ActiveRequest& active = *now_.requests[index];
  if (const Status arrived = check_arrived(run); !arrived.ok()) {
    fail_request(run.request, arrived.error());  // its KV and token were computed over rubbish
    return;
  }
  auto& sampled = sampled_[index];
  if (sampled && !sampled->ok()) {
    core_->scheduler.complete(run, std::nullopt);
    fail_request(run.request, std::move(*sampled).error());
    return;
  }
  bool ends = false;
  if (sampled) {
    core_->scheduler.complete(run, (*sampled)->id);
    ends = active.accept(std::move(*sampled).value());
    if (Status text = active.text_status(); !text.ok()) {
      fail_request(run.request, std::move(text).error());
      return;
    }
    core_->counters.tokens_generated += 1;
    touched_.push_back(&active);
  } else {
    ends = reaches_end(run);  // the prompt was all that was wanted
    core_->scheduler.complete(run, std::nullopt);
  }
  active.channel()->note_computed(run.first + run.count);
  if (ends) {
    active.note_computed(run.sequence);
    core_->scheduler.finish(run.request);
    core_->counters.requests_finished += 1;
    finished_.push_back(&active);
  }
}

void Engine::deliver_all() {
  publish_stats();
  for (ActiveRequest* active : touched_) {
    active->deliver();
  }
  for (ActiveRequest* active : finished_) {
    active->end(FinishReason::kLength);  // no effect on what deliver() has ended
    next_.forget(active);
    active_.erase(active->id().value);
  }
  touched_.clear();
  finished_.clear();
}

void Engine::fail_request(RequestId id, Error error) {
  const auto it = active_.find(id.value);
  QUIRE_CHECK(it != active_.end(), "the scheduler knows a request that the engine does not");
  core_->scheduler.finish(id);
  core_->counters.tokens_reused -= it->second.cached_tokens();  // no output has them
  publish_stats();
  it->second.fail(std::move(error));
  next_.forget(&it->second);
  active_.erase(it);
}

void Engine::fail_all(const Error& error) {
  while (!active_.empty()) {
    fail_request(active_.begin()->second.id(), base::copy_of(error));
  }
}

}  // namespace quire::engine
