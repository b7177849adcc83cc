#include "quire/engine/request_table.h"

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/engine/call_deadline.h"
#include "quire/engine/channel.h"
#include "quire/engine/prompt_parts.h"
#include "quire/engine/queue_limit.h"
#include "quire/engine/scheduled_request.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Returns a different stream of random numbers for every draw (splitmix64, Steele et al. 2014).
std::uint64_t drawn_seed(std::uint64_t engine_seed, std::uint64_t draw) {
  std::uint64_t z = engine_seed + draw * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

// Takes back the requests from `first` on that were queued, and the sequences of those that were
// not.
void RequestTable::withdraw(std::uint64_t first, std::span<const NewRequest> refused) {
  for (std::uint64_t undo = first; undo < next_request_; ++undo) {
    core_.scheduler.finish(RequestId{undo});
    erase(undo);
  }
  for (const NewRequest& request : refused) {
    if (request.composed) {
      core_.ledger.sequences().close(request.composed->sequence);
    }
  }
}

Status RequestTable::enqueue(std::vector<NewRequest> requests,
                             std::vector<std::shared_ptr<Channel>>& channels) {
  const std::uint64_t first = next_request_;
  const std::uint64_t first_draw = next_draw_;
  const std::optional<std::int32_t> most_waiting = options_.scheduling.max_waiting;
  std::int64_t added = 0;  // for the queue, with requests that follow
  std::int64_t bytes = 0;
  channels.reserve(channels.size() + requests.size());
  for (NewRequest& request : requests) {
    const RequestId id{next_request_++};
    const sched::Request scheduled = scheduled_request(core_, sessions_, options_, request, id);
    if (Status status = core_.scheduler.submit(scheduled); !status.ok()) {
      withdraw(first, std::span(requests).subspan(id.value - first));
      next_draw_ = first_draw;
      channels.clear();
      return status;
    }
    const std::int64_t more = request.follows ? 0 : std::int64_t{1} + request.followers;
    added += more;
    bytes += most_waiting ? more * kv_bytes(core_, request) : 0;
    if (const auto deadline = request.urgency.deadline) {
      deadlines_.emplace(*deadline, id.value);
    }
    request.same_bits = same_bits_;
    const std::uint64_t seed = seed_of(request.params, request.kind);
    const auto& text = core_.bundle.text;
    ActiveRequest active(id, std::move(request), seed, text == nullptr ? nullptr : &text->tokenizer,
                         core_.bundle.eos_token_ids);
    channels.push_back(active.channel());
    active_.emplace(id.value, std::move(active));
  }
  Status status =
      most_waiting && added > 0 ? check_queue(core_, *most_waiting, added, bytes) : Status();
  if (!status.ok()) {
    withdraw(first, {});
    next_draw_ = first_draw;
    channels.clear();
    core_.counters.requests_refused += added;
    refresh_stats();
    return status;
  }
  stats_.refresh(core_, waiting_since());  // the next step tells whether they wait for long
  return {};
}

void RequestTable::erase(std::uint64_t id) {
  const auto found = active_.find(id);
  if (found == active_.end()) {
    return;
  }
  if (const auto deadline = found->second.request().urgency.deadline) {
    deadlines_.erase({*deadline, id});
  }
  core_.swap_space.forget(RequestId{id});
  tell_end(RequestId{id});
  active_.erase(found);
}

void RequestTable::tell_end(RequestId id) const {
  if (hears_end_) {
    hears_end_(id);
  }
}

std::optional<RequestId> RequestTable::overdue(Clock::time_point now) const {
  return !deadlines_.empty() && deadlines_.begin()->first <= now
             ? std::optional(RequestId{deadlines_.begin()->second})
             : std::nullopt;
}

void RequestTable::expire(RequestId id) {
  const ActiveRequest& active = at(id);
  const double seconds = active.request().urgency.deadline_seconds.value_or(0);
  core_.counters.requests_expired += 1;
  fail(id, passed_deadline(seconds, active.admitted() ? "ran" : "waited"));
}

std::optional<Clock::time_point> RequestTable::waiting_since() const {
  const std::optional<RequestId> first = core_.scheduler.first_waiting();
  const auto found = first ? active_.find(first->value) : active_.end();
  return found == active_.end() ? std::nullopt : std::optional(found->second.request().submitted);
}

// Returns the seed of a request. Only a request that chooses at random, and brings no seed, draws
// one: prefill and greedy requests leave the draws as they are.
std::uint64_t RequestTable::seed_of(const SamplingParams& params, RequestKind kind) {
  const bool draws = kind == RequestKind::kGenerate && params.temperature > 0 &&
                     params.max_tokens > 0 && !params.seed;
  return draws ? drawn_seed(options_.seed, next_draw_++) : params.seed.value_or(0);
}

std::int64_t RequestTable::admit(ActiveRequest& active) {
  const NewRequest& request = active.request();
  const sched::RequestProgress progress = core_.scheduler.progress(active.id());
  if (request.explain && !request.composed) {
    const std::string& salt = options_.salt_of(request.salt);
    PromptReuse reuse{.cached = core_.ledger.cache().match(request.prompt, salt)};
    if (progress.kept_tokens > 0) {  // the cache knows them by now
      reuse = {.cached = progress.cached_tokens - progress.kept_tokens,
               .host = progress.cached_tokens};
    }
    active.note_parts(prompt_parts(core_.ledger.cache(), request.prompt, salt, reuse));
  }
  return active.note_admission(progress);
}

void RequestTable::tell(LogLevel level, RequestId id, std::string_view what) const {
  options_.log.tell(level, base::str_cat("request ", id.value, ": ", what));
}

bool RequestTable::abort(RequestId id) {
  const auto it = active_.find(id.value);
  if (it == active_.end()) {
    return false;
  }
  core_.scheduler.finish(id);
  tell_end(id);
  refresh_stats();
  it->second.end(FinishReason::kCancelled);
  erase(id.value);
  note_end();
  return true;
}

void RequestTable::fail(RequestId id, Error error) {
  const auto it = active_.find(id.value);
  QUIRE_CHECK(it != active_.end(), "the scheduler knows a request that the engine does not");
  core_.scheduler.finish(id);
  core_.counters.tokens_reused -= it->second.cached_tokens();  // no output has them
  tell_end(id);
  refresh_stats();
  it->second.fail(std::move(error));
  erase(id.value);
  note_end();
}

void RequestTable::fail_all(const Error& error) {
  while (!active_.empty()) {
    fail(active_.begin()->second.id(), base::copy_of(error));
  }
}

void RequestTable::finish(ActiveRequest& active) {
  active.end(FinishReason::kLength);  // no effect on one that deliver() has ended
  erase(active.id().value);
  note_end();
}

void RequestTable::fail_since(std::uint64_t first) {
  for (std::uint64_t id = first; id < next_request_; ++id) {
    core_.scheduler.finish(RequestId{id});
    if (const auto begun = active_.find(id); begun != active_.end()) {
      begun->second.fail(base::no_memory("the call"));
      erase(id);
    }
  }
  note_end();
}

std::shared_future<void> RequestTable::next_end() {
  if (!end_) {
    end_.emplace();
    next_end_ = end_->get_future().share();
  }
  return next_end_;
}

void RequestTable::note_end() {
  if (end_) {
    end_->set_value();
    end_.reset();
  }
}

}  // namespace quire::engine
