// One step of the engine: plan, commit, forward, sample, settle, deliver. Engine thread only.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/plan.h"
#include "quire/base/check.h"
#include "quire/base/stopwatch.h"
#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/engine/arrivals.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/tier_service.h"
#include "quire/kernels/choice.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/scheduler.h"
#include "quire/types.h"

// NOLINTBEGIN(bugprone-unchecked-optional-access): set_up fills them before the thread starts.
namespace quire::engine {
namespace {

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

bool Engine::await_write() { return chunks_->await_write(); }

// Whether blocks have come back since the plan was made: with a chunk that waited for the disk, or
// with a letter.
bool Engine::may_get_blocks() {
  if (await_write()) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  return !mailbox_.empty();
}

void Engine::step() {
  const auto start = Clock::now();
  base::Stopwatch watch;
  plan_ = scheduler_->plan(std::move(plan_));
  if (plan_.stuck && may_get_blocks()) {
    return;  // plans again
  }
  if (plan_.stuck) {
    const std::int64_t free_blocks = ledger_->blocks_available();
    fail_request(*plan_.stuck,
                 {.code = ErrorCode::kOutOfBlocks,
                  .message = base::str_cat("the request does not fit now: ", free_blocks, " of ",
                                           ledger_->counts().blocks_total,
                                           " blocks can be had; unpin or delete something, or "
                                           "raise kv_budget"),
                  .free_bytes = free_blocks * counters_.block_bytes});
    return;
  }
  const auto runs = scheduler_->commit(plan_);
  QUIRE_CHECK(runs.ok(), "a fresh plan could not be committed");
  if (runs->empty()) {
    return;
  }
  watch.lap(counters_.schedule_seconds);
  try {
    if (const Status computed = compute(*runs, watch); !computed.ok()) {
      fail_all(computed.error());
      return;
    }
  } catch (const std::bad_alloc&) {
    fail_all({.code = ErrorCode::kOutOfBlocks,
              .message = "the machine has no memory left for this step's activations; lower "
                         "max_batch_tokens"});
    return;
  }
  for (std::size_t i = 0; i < runs->size(); ++i) {
    settle((*runs)[i], i);
  }
  counters_.preemptions += static_cast<std::int64_t>(plan_.preempt.size());
  counters_.steps += 1;
  watch.lap(counters_.settle_seconds);
  counters_.step_seconds += seconds_between(start, Clock::now());
  deliver_all();
  watch.lap(counters_.deliver_seconds);
}

// True when the run computes the last token that its sequence has.
bool Engine::reaches_end(const sched::ScheduledRun& run) const {
  return run.first + run.count == std::ssize(ledger_->tokens(run.sequence));
}

LogitRows Engine::wanted_logits(const sched::ScheduledRun& run, RequestKind kind) const {
  switch (kind) {
    case RequestKind::kForwardAll:
      return LogitRows::kAll;
    case RequestKind::kForwardLast:
      return reaches_end(run) ? LogitRows::kLast : LogitRows::kNone;
    case RequestKind::kPrefill:
      return LogitRows::kNone;
    case RequestKind::kGenerate:
      break;
  }
  return run.samples ? LogitRows::kLast : LogitRows::kNone;
}

// What the ledger has ordered.
Status Engine::copy_blocks() {
  Arrivals& arrivals = tiers_->arrivals();
  Status status;
  for (const kv::BlockCopy& copy : ledger_->take_copies()) {
    if (!arrivals.idle()) {
      arrivals.before_copy(copy);
    }
    if (const Status copied = store_->copy(copy); !copied.ok()) {
      status = copied;
    }
  }
  return status;
}

// Fills sampled_ and the logits of forward requests.
Status Engine::compute(std::span<const sched::ScheduledRun> runs, base::Stopwatch& watch) {
  QUIRE_TRY_STATUS(copy_blocks());
  in_step_.clear();
  wanted_logits_.clear();
  for (const sched::ScheduledRun& run : runs) {
    ActiveRequest& active = active_.at(run.request.value);
    in_step_.push_back(&active);
    wanted_logits_.push_back(wanted_logits(run, active.kind()));
    if (!active.admitted()) {
      const std::int64_t cached_tokens = scheduler_->progress(run.request).cached_tokens;
      counters_.tokens_reused += active.note_admission(cached_tokens);
    }
  }
  model::ForwardBatch batch = builder_.build(runs, wanted_logits_, *ledger_);
  const std::vector<Arrivals::LoadRef> awaited = awaited_loads(runs);
  const std::function<void(int)> before_layer = [&awaited](int layer) {
    for (const Arrivals::LoadRef& load : awaited) {
      [[maybe_unused]] const Status seen_at_the_end = load->wait(layer);
    }
  };
  if (!awaited.empty()) {
    batch.before_layer = &before_layer;
  }
  if (views_.front().on_device) {
    offer_choices(runs, batch);
  }
  watch.lap(counters_.build_seconds);
  const double before = counters_.forward_seconds;
  QUIRE_TRY(const std::span<float> logits, bundle_.decoder->forward(batch, views_));
  watch.lap(counters_.forward_seconds);
  sample(runs, logits);
  counters_.tokens_computed += std::ssize(batch.token_ids);
  const attention::PlanCounters read = bundle_.decoder->last_counters();
  counters_.attention.entries += read.entries;
  counters_.attention.rows += read.rows;
  counters_.attention.blocks_read += read.blocks_read;
  counters_.forward_host_seconds += bundle_.decoder->last_timing().host;
  if (awaited.empty()) {
    tiers_->pace().note_computed(std::ssize(batch.token_ids), counters_.forward_seconds - before);
  }
  watch.lap(counters_.sample_seconds);
  return {};
}

// Files that runs of the step are still read from.
std::vector<Arrivals::LoadRef> Engine::awaited_loads(
    std::span<const sched::ScheduledRun> runs) const {
  std::vector<Arrivals::LoadRef> awaited;
  if (tiers_->arrivals().idle()) {
    return awaited;
  }
  for (const sched::ScheduledRun& run : runs) {
    for (const kv::RunView& view : ledger_->runs(run.sequence)) {
      for (Arrivals::LoadRef& load : tiers_->arrivals().filling(view.blocks)) {
        awaited.push_back(std::move(load));
      }
    }
  }
  return awaited;
}

// Whether the KV that the run has seen was what its files should have held.
Status Engine::check_arrived(const sched::ScheduledRun& run) const {
  if (tiers_->arrivals().idle()) {
    return {};
  }
  for (const kv::RunView& view : ledger_->runs(run.sequence)) {
    QUIRE_TRY_STATUS(tiers_->arrivals().outcome(view.blocks));
  }
  return {};
}

// How each row's token is chosen, and what of its logits changes before, so that a device can do it
// where the logits are.
void Engine::offer_choices(std::span<const sched::ScheduledRun> runs, model::ForwardBatch& batch) {
  choices_.assign(batch.logit_rows.size(), {});
  changes_.clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].samples) {
      continue;
    }
    const sampling::SampleContext context = in_step_[i]->sample_context();
    const auto choice = sampling::choice_of(context);
    const auto changes =
        samplers_.front().changes(context, static_cast<std::size_t>(model_config().vocab_size));
    if (!choice || !changes.ok()) {  // Sampler::sample says what is wrong
      continue;
    }
    const std::int32_t row = builder_.logit_ranges()[i].first;
    choices_[static_cast<std::size_t>(row)] = *choice;
    for (kernels::LogitChange change : *changes) {
      change.row = row;
      changes_.push_back(change);
    }
  }
  batch.choices = choices_;
  batch.changes = changes_;
}

void Engine::sample(std::span<const sched::ScheduledRun> runs, std::span<float> logits) {
  const std::span<const TokenId> chosen = bundle_.decoder->last_chosen();
  const auto vocab = static_cast<std::size_t>(model_config().vocab_size);
  sampled_.assign(runs.size(), std::nullopt);
  std::size_t left = 0;
  const auto rows_of = [&](std::size_t i) {
    const LogitRange range = builder_.logit_ranges()[i];
    return logits.subspan(static_cast<std::size_t>(range.first) * vocab,
                          static_cast<std::size_t>(range.count) * vocab);
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ActiveRequest& active = *in_step_[i];
    if (active.kind() != RequestKind::kGenerate && !rows_of(i).empty()) {
      active.add_logits(rows_of(i), static_cast<std::int64_t>(vocab));
    }
    if (runs[i].samples) {
      const auto row = static_cast<std::size_t>(builder_.logit_ranges()[i].first);
      if (!chosen.empty() && chosen[row] >= 0) {
        sampled_[i] = sampling::SampledToken{.id = chosen[row], .logprobs = {}};
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
    if (runs[i].samples && !sampled_[i]) {
      sampled_[i] = samplers_[static_cast<std::size_t>(thread)].sample(
          rows_of(i), in_step_[i]->sample_context());
    }
  });
}

// Books the run's KV and its token; a request that ends here gives its blocks back.
void Engine::settle(const sched::ScheduledRun& run, std::size_t index) {
  ActiveRequest& active = *in_step_[index];
  if (const Status arrived = check_arrived(run); !arrived.ok()) {
    fail_request(run.request, arrived.error());  // its KV and token were computed over rubbish
    return;
  }
  auto& sampled = sampled_[index];
  if (sampled && !sampled->ok()) {
    scheduler_->complete(run, std::nullopt);
    fail_request(run.request, std::move(*sampled).error());
    return;
  }
  bool ends = false;
  if (sampled) {
    scheduler_->complete(run, (*sampled)->id);
    ends = active.accept(std::move(*sampled).value());
    counters_.tokens_generated += 1;
    touched_.push_back(&active);
  } else {
    ends = reaches_end(run);  // the prompt was all that was wanted
    scheduler_->complete(run, std::nullopt);
  }
  if (ends) {
    active.note_computed(run.sequence);
    scheduler_->finish(run.request);
    counters_.requests_finished += 1;
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
    active_.erase(active->id().value);
  }
  touched_.clear();
  finished_.clear();
}

void Engine::fail_request(RequestId id, Error error) {
  const auto it = active_.find(id.value);
  QUIRE_CHECK(it != active_.end(), "the scheduler knows a request that the engine does not");
  scheduler_->finish(id);
  publish_stats();
  it->second.fail(std::move(error));
  active_.erase(it);
}

void Engine::fail_all(const Error& error) {
  std::vector<RequestId> ids;
  ids.reserve(active_.size());
  for (const auto& [value, active] : active_) {
    ids.push_back(active.id());
  }
  for (const RequestId id : ids) {
    fail_request(id, error);
  }
}

}  // namespace quire::engine
// NOLINTEND(bugprone-unchecked-optional-access)
