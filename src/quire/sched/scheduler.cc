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
#include "quire/sched/planner.h"
#include "quire/sched/room_left.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1}
                                    << 30;  // most tokens of one sequence, window or not

std::string in_bytes(std::int64_t bytes) {
  return bytes == 0 ? "" : base::str_cat(" (", base::format_bytes(bytes), ")");
}

}  // namespace

Status SchedulerConfig::validate() const {
  if (max_batch_tokens < 1 || max_running < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_batch_tokens is ", max_batch_tokens, " and max_running is ",
                          max_running, "; give at least 1")};
  }
  if (block_bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("block_bytes is ", block_bytes, "; give 0 (not known) or more")};
  }
  return {};
}

void StepPlan::clear() {
  preempt.clear();
  admit.clear();
  runs.clear();
  drop.clear();
  stuck.reset();
}

struct Scheduler::Impl {
  [[nodiscard]] QueuedRequest* find(RequestId id) const;
  [[nodiscard]] std::int64_t prompt_tokens(const Request& request) const;
  [[nodiscard]] std::int64_t total_tokens(const Request& request) const;
  [[nodiscard]] Status check_fits(const Request& request) const;
  void preempt(RequestId id);
  void admit(RequestId id);
  [[nodiscard]] Status make_room(std::span<const PlannedRun> runs);
  [[nodiscard]] bool can_repeat(std::span<const ScheduledRun> runs) const;

  SchedulerState state;
  std::vector<ScheduledRun> scheduled;                      // by the last commit
  std::vector<kv::Growth> growths;                          // by the last commit or repeat
  std::unordered_map<std::uint64_t, QueuedRequest*> by_id;  // owned by state.line
  std::uint64_t last_arrival = 0;
};

QueuedRequest* Scheduler::Impl::find(RequestId id) const {
  const auto found = by_id.find(id.value);
  return found == by_id.end() ? nullptr : found->second;
}

std::int64_t Scheduler::Impl::prompt_tokens(const Request& request) const {
  return request.sequence ? std::ssize(state.ledger->sequences().tokens(*request.sequence))
                          : std::ssize(request.prompt);
}

// Counts the tokens whose KV a request needs at most. KV of the last sampled token is never needed.
std::int64_t Scheduler::Impl::total_tokens(const Request& request) const {
  return prompt_tokens(request) + std::max<std::int64_t>(request.max_new_tokens, 1) - 1;
}

Status Scheduler::Impl::check_fits(const Request& request) const {
  const std::int64_t tokens = total_tokens(request);
  const kv::Ledger& ledger = *state.ledger;
  const std::int64_t needed =
      ledger.min_blocks(tokens) +
      (request.sequence ? ledger.segments().blocks_before(*request.sequence) : 0);
  const std::int64_t all = ledger.blocks_at_most();
  if (needed <= all && tokens <= kMaxTokens) {
    return {};
  }
  const std::int64_t block_bytes = state.config.block_bytes;
  return Error{
      .code = ErrorCode::kOverflow,
      .message = base::str_cat("request ", request.id.value, " needs ", needed, " blocks for ",
                               tokens, " tokens", in_bytes(needed * block_bytes), ", the pool has ",
                               all, in_bytes(all * block_bytes),
                               "; shorten the prompt, lower max_tokens or raise kv_budget"),
      .needed_bytes = needed * block_bytes,
      .free_bytes = all * block_bytes};
}

void Scheduler::Impl::preempt(RequestId id) {
  QueuedRequest& youngest = *state.line[static_cast<std::size_t>(state.num_running - 1)];
  QUIRE_CHECK(youngest.request.id == id, "only the youngest running request may be preempted");
  state.ledger->preemption().drop_kv(youngest.running_sequence());
  ++youngest.progress.preemptions;
  --state.num_running;
}

void Scheduler::Impl::admit(RequestId id) {
  QueuedRequest& head = *state.line[static_cast<std::size_t>(state.num_running)];
  QUIRE_CHECK(head.request.id == id, "only the head of the queue may be admitted");
  if (head.sequence) {
    state.ledger->preemption().reattach(*head.sequence);
  } else {
    head.sequence = state.ledger->sequences().open(head.request.prompt, head.request.reuse,
                                                   head.request.session, head.request.salt);
    state.ledger->points().mark(*head.sequence, head.request.marks,
                                static_cast<std::int32_t>(head.request.prompt.size()));
    head.request.prompt = {};
    head.progress.cached_tokens = state.ledger->sequences().num_computed(*head.sequence);
  }
  state.ledger->sequences().reserve(*head.sequence, head.total_tokens + std::int64_t{1});
  ++state.num_running;
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
                         .samples = run.samples});
  }
  return sequences.extend(growths);
}

bool Scheduler::Impl::can_repeat(std::span<const ScheduledRun> runs) const {
  if (std::cmp_not_equal(runs.size(), state.num_running)) {
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
  for (const auto& queued : impl_->state.line) {
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
  QUIRE_TRY_STATUS(impl_->check_fits(request));
  auto queued = std::make_unique<QueuedRequest>();
  queued->total_tokens = static_cast<std::int32_t>(impl_->total_tokens(request));
  queued->sequence = request.sequence;
  if (request.sequence) {
    const kv::Ledger& ledger = *impl_->state.ledger;
    queued->progress.cached_tokens = ledger.segments().tokens_before(*request.sequence) +
                                     ledger.sequences().num_computed(*request.sequence);
  }
  queued->request = std::move(request);
  queued->arrival = ++impl_->last_arrival;
  // Memory first: what is refused is in neither.
  auto& line = impl_->state.line;
  if (line.size() == line.capacity()) {
    line.reserve(2 * line.size() + 1);
  }
  impl_->by_id.emplace(queued->request.id.value, queued.get());
  line.push_back(std::move(queued));
  ++impl_->state.version;
  return {};
}

bool Scheduler::finish(RequestId id) {
  const QueuedRequest* queued = impl_->find(id);
  if (queued == nullptr) {
    return false;
  }
  SchedulerState& state = impl_->state;
  const auto place = std::ranges::partition_point(
      state.line, [&](const auto& other) { return other->arrival < queued->arrival; });
  if (place - state.line.begin() < state.num_running) {
    --state.num_running;
  }
  if (queued->sequence) {
    state.ledger->sequences().close(*queued->sequence);
  }
  impl_->by_id.erase(id.value);
  state.line.erase(place);
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
  for (const RequestId id : plan.drop) {
    state.ledger->preemption().drop_kv(impl_->find(id)->running_sequence());
  }
  for (const RequestId id : plan.admit) {
    impl_->admit(id);
  }
  QUIRE_TRY_STATUS(impl_->make_room(plan.runs));
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
  return true;
}

void Scheduler::complete(const ScheduledRun& run, std::optional<TokenId> sampled) {
  if (impl_->find(run.request) == nullptr) {
    return;
  }
  impl_->state.ledger->sequences().advance(run.sequence, run.count);
  if (run.samples && sampled) {
    impl_->state.ledger->sequences().append(run.sequence, *sampled);
  }
  ++impl_->state.version;
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
  return static_cast<std::int32_t>(impl_->state.line.size()) - impl_->state.num_running;
}

std::optional<RequestId> Scheduler::first_waiting() const {
  const auto& line = impl_->state.line;
  const auto first = static_cast<std::size_t>(impl_->state.num_running);
  return first < line.size() ? std::optional(line[first]->request.id) : std::nullopt;
}

std::int32_t Scheduler::num_running() const { return impl_->state.num_running; }

}  // namespace quire::sched
