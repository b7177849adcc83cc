#include "quire/sched/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/accounting.h"
#include "quire/sched/assumed.h"
#include "quire/sched/kept_kv.h"
#include "quire/sched/planner.h"
#include "quire/sched/policy.h"
#include "quire/sched/queue_room.h"
#include "quire/sched/room_left.h"
#include "quire/sched/state.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {

struct Scheduler::Impl {
  [[nodiscard]] QueuedRequest* find(RequestId id) const;
  [[nodiscard]] std::int64_t prompt_tokens(const Request& request) const;
  [[nodiscard]] std::int64_t total_tokens(const Request& request) const;
  void preempt(RequestId id);
  void admit(RequestId id);
  [[nodiscard]] Status make_room(std::span<const PlannedRun> runs);
  [[nodiscard]] bool can_repeat(std::span<const ScheduledRun> runs) const;

  SchedulerState state;
  std::vector<ScheduledRun> scheduled;  // by the last commit
  std::vector<kv::Growth> growths;      // by the last commit or repeat
  std::unordered_map<std::uint64_t, std::unique_ptr<QueuedRequest>> by_id;
  std::uint64_t last_arrival = 0;
};

QueuedRequest* Scheduler::Impl::find(RequestId id) const {
  const auto found = by_id.find(id.value);
  return found == by_id.end() ? nullptr : found->second.get();
}

std::int64_t Scheduler::Impl::prompt_tokens(const Request& request) const {
  return request.sequence ? std::ssize(state.ledger->sequences().tokens(*request.sequence))
                          : std::ssize(request.prompt);
}

// Counts the tokens whose KV a request needs at most. KV of the last sampled token is never needed.
std::int64_t Scheduler::Impl::total_tokens(const Request& request) const {
  return prompt_tokens(request) + std::max<std::int64_t>(request.max_new_tokens, 1) - 1;
}

void Scheduler::Impl::preempt(RequestId id) {
  QueuedRequest* queued = find(id);
  QUIRE_CHECK(queued != nullptr && queued->running, "only a running request may be preempted");
  state.ledger->preemption().drop_kv(queued->running_sequence());
  ++queued->progress.preemptions;
  queued->running = false;
  move_between(state.running, state.waiting, *queued);
}

void Scheduler::Impl::admit(RequestId id) {
  QueuedRequest* queued = find(id);
  QUIRE_CHECK(queued != nullptr && !queued->running, "only a waiting request may be admitted");
  if (queued->sequence) {
    state.ledger->preemption().reattach(*queued->sequence);
  } else {
    queued->sequence = state.ledger->sequences().open(queued->request.prompt, queued->request.reuse,
                                                      queued->request.session, queued->request.salt,
                                                      queued->request.behind_window);
    state.ledger->points().mark(*queued->sequence, queued->request.marks,
                                static_cast<std::int32_t>(queued->request.prompt.size()));
    queued->request.prompt = {};
    queued->progress.cached_tokens = state.ledger->sequences().num_computed(*queued->sequence);
  }
  state.ledger->sequences().reserve_memory(*queued->sequence,
                                           queued->total_tokens + std::int64_t{1});
  reserve_blocks(*state.ledger, *queued->sequence, queued->total_tokens);
  queued->admitted = state.ledger->cache().now();
  queued->running = true;
  move_between(state.waiting, state.running, *queued);
}

Status Scheduler::Impl::make_room(std::span<const PlannedRun> runs) {
  kv::Sequences& sequences = state.ledger->sequences();
  scheduled.clear();
  growths.clear();
  for (const PlannedRun& run : runs) {
    const SeqId sequence = find(run.request)->running_sequence();
    const std::int32_t computed = sequences.num_computed(sequence);
    if (computed != run.first) {
      return {ErrorCode::kInternal,
              base::str_cat("request ", run.request.value, " was planned from token ", run.first,
                            " but has KV of ", computed)};
    }
    growths.push_back({.sequence = sequence, .count = run.count});
    scheduled.push_back({.request = run.request,
                         .sequence = sequence,
                         .first = run.first,
                         .count = run.count,
                         .samples = run.samples,
                         .assumed = run.assumed});
  }
  return sequences.extend(growths);
}

bool Scheduler::Impl::can_repeat(std::span<const ScheduledRun> runs) const {
  if (state.config.policy == PolicyKind::kPriority && !state.waiting.empty()) {
    return false;  // one that waits may outrank a running one while nothing but time goes on
  }
  if (runs.size() != state.running.size()) {
    return false;
  }
  const kv::Ledger& ledger = *state.ledger;
  const RoomLeft room(ledger);
  RoomNeed all;
  for (const ScheduledRun& run : runs) {
    const QueuedRequest* queued = find(run.request);
    const RoomNeed needed = queued == nullptr ? RoomNeed{} : room.need_of(run.sequence, 2);
    // A block that is being written cannot be copied, and two may want others to make way.
    if (queued == nullptr || run.count != 1 || !run.samples ||
        run.first + 2 > queued->total_tokens ||
        ledger.sequences().shares_open_block(run.sequence) || needed.own > 1) {
      return false;
    }
    all = {.own = all.own + needed.own, .open = all.open + needed.open};
  }
  return all.own <= room.own() && all.open <= room.open();  // without lending a slab
}

Scheduler::Scheduler(const SchedulerConfig& config, kv::Ledger& ledger)
    : impl_(std::make_unique<Impl>()) {
  QUIRE_CHECK(config.validate().ok(), "the scheduler's configuration was not validated");
  impl_->state.config = config;
  impl_->state.ledger = &ledger;
}

Scheduler::~Scheduler() {
  for (const auto& [id, queued] : impl_->by_id) {
    if (const auto& sequence = queued->sequence) {
      impl_->state.ledger->sequences().close(*sequence);
    }
  }
}

Status Scheduler::submit(Request request) {
  if (impl_->prompt_tokens(request) == 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("request ", request.id.value, " has no prompt token; give at least 1")};
  }
  if (request.max_new_tokens < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("request ", request.id.value, " asks for ", request.max_new_tokens,
                          " new tokens; give 0 or more")};
  }
  if (impl_->find(request.id) != nullptr) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("request ", request.id.value, " is there already")};
  }
  QUIRE_TRY_STATUS(check_fits(impl_->state, request, impl_->total_tokens(request)));
  SchedulerState& state = impl_->state;
  const kv::Ledger& ledger = *state.ledger;
  auto queued = std::make_unique<QueuedRequest>();
  queued->prompt_tokens = static_cast<std::int32_t>(impl_->prompt_tokens(request));
  queued->total_tokens = static_cast<std::int32_t>(impl_->total_tokens(request));
  queued->sequence = request.sequence;
  if (request.sequence) {
    queued->progress.cached_tokens = ledger.segments().tokens_before(*request.sequence) +
                                     ledger.sequences().num_computed(*request.sequence);
  }
  queued->request = std::move(request);
  if (queued->request.submitted == kv::TimePoint()) {
    queued->request.submitted = ledger.cache().now();
  }
  queued->arrival = ++impl_->last_arrival;
  // Memory first: what is refused is in neither. Moving between the lines needs none.
  const std::size_t requests = impl_->by_id.size() + 1;
  for (RequestLine* line : {&state.running, &state.waiting}) {
    if (line->capacity() < requests) {
      line->reserve(2 * requests);
    }
  }
  QueuedRequest& added = *queued;
  const auto place = impl_->by_id.emplace(added.request.id.value, std::move(queued)).first;
  if (state.config.policy == PolicyKind::kFair) {
    try {
      added.tenant = state.tenants.enter(added.request.tenant);
    } catch (...) {
      impl_->by_id.erase(place);
      throw;
    }
  }
  state.waiting.push_back(&added);
  ++state.version;
  return {};
}

bool Scheduler::finish(RequestId id) {
  const QueuedRequest* queued = impl_->find(id);
  if (queued == nullptr) {
    return false;
  }
  SchedulerState& state = impl_->state;
  RequestLine& line = queued->running ? state.running : state.waiting;
  line.erase(std::ranges::lower_bound(line, queued->arrival, {}, &QueuedRequest::arrival));
  if (queued->sequence) {
    state.ledger->sequences().close(*queued->sequence);
  }
  if (queued->tenant >= 0) {
    state.tenants.leave(queued->tenant);
  }
  impl_->by_id.erase(id.value);
  ++state.version;
  return true;
}

StepPlan Scheduler::plan(StepPlan memory) const {
  make_plan(impl_->state, memory);
  return memory;
}

Result<std::span<const ScheduledRun>> Scheduler::commit(const StepPlan& plan) {
  SchedulerState& state = impl_->state;
  if (plan.version != state.version) {
    return {ErrorCode::kInternal, base::str_cat("the plan is stale: made of state ", plan.version,
                                                ", the state is ", state.version)};
  }
  ++state.version;
  for (const RequestId id : plan.preempt) {
    impl_->preempt(id);
  }
  for (const RequestId id : plan.make_way) {
    impl_->preempt(id);
  }
  for (const RequestId id : plan.drop) {
    state.ledger->preemption().drop_kv(impl_->find(id)->running_sequence());
  }
  for (const RequestId id : plan.admit) {
    impl_->admit(id);
  }
  QUIRE_TRY_STATUS(impl_->make_room(plan.runs));
  for (const PlannedRun& run : plan.runs) {
    charge(state, *impl_->find(run.request), run);
  }
  return std::span<const ScheduledRun>(impl_->scheduled);
}

bool Scheduler::repeat(std::span<const ScheduledRun> runs, std::vector<ScheduledRun>& next) {
  if (!impl_->can_repeat(runs)) {
    return false;
  }
  ++impl_->state.version;
  next.assign(runs.begin(), runs.end());
  impl_->growths.clear();
  for (ScheduledRun& run : next) {
    impl_->growths.push_back({.sequence = run.sequence, .count = 2});
    ++run.first;
  }
  QUIRE_CHECK(impl_->state.ledger->sequences().extend(impl_->growths).ok(),
              "counted blocks are there");
  for (const ScheduledRun& run : next) {
    charge(impl_->state, *impl_->find(run.request),
           {.first = run.first, .count = run.count, .samples = run.samples});
  }
  return true;
}

std::int64_t Scheduler::assume(StepPlan& plan, std::span<const std::int32_t> wanted) const {
  return assume_rows(impl_->state, wanted, plan);
}

double Scheduler::seconds_left(const StepPlan& plan) const {
  return sched::seconds_left(impl_->state, plan);
}

void Scheduler::complete(const ScheduledRun& run, std::span<const TokenId> sampled) {
  if (QueuedRequest* queued = impl_->find(run.request)) {
    book(impl_->state, *queued, run, sampled);
    ++impl_->state.version;
  }
}

std::optional<SeqId> Scheduler::sequence(RequestId id) const {
  const QueuedRequest* queued = impl_->find(id);
  return queued == nullptr ? std::nullopt : queued->sequence;
}

RequestProgress Scheduler::progress(RequestId id) const {
  const QueuedRequest* queued = impl_->find(id);
  return queued == nullptr ? RequestProgress{} : queued->progress;
}

std::int32_t Scheduler::num_waiting() const {
  return static_cast<std::int32_t>(impl_->state.waiting.size());
}

std::int32_t Scheduler::num_new() const {
  std::int32_t count = 0;
  for (const QueuedRequest* queued : impl_->state.waiting) {
    count += queued->progress.preemptions == 0 ? 1 + queued->request.followers : 0;
  }
  return count;
}

std::int32_t Scheduler::num_without_room() const { return count_without_room(impl_->state); }

std::optional<RequestId> Scheduler::first_waiting() const {
  const RequestLine& waiting = impl_->state.waiting;
  return waiting.empty() ? std::nullopt : std::optional(waiting.front()->request.id);
}

std::int32_t Scheduler::num_running() const {
  return static_cast<std::int32_t>(impl_->state.running.size());
}

void Scheduler::note_kept(RequestId id, std::int32_t tokens) {
  if (QueuedRequest* queued = impl_->find(id)) {
    queued->kept = tokens;
  }
}

std::optional<Takes> Scheduler::takes(RequestId id) const {
  const QueuedRequest* queued = impl_->find(id);
  return queued == nullptr ? std::nullopt : takes_of(*queued, *impl_->state.ledger);
}

std::int32_t Scheduler::kept(RequestId id) const {
  const QueuedRequest* queued = impl_->find(id);
  return queued == nullptr ? 0 : queued->kept;
}

void Scheduler::note_brought(RequestId id, std::int32_t first) {
  if (QueuedRequest* queued = impl_->find(id)) {
    sched::note_brought(*queued, *impl_->state.ledger, first);
  }
}

void Scheduler::set_pace(const StepPace& pace) { impl_->state.pace = pace; }

}  // namespace quire::sched
