#include "quire/sched/assumed.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/sched/room_left.h"
#include "quire/sched/state.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

// Returns the rows, and with a bound on the time of a step those that fit into it, that a plan
// leaves over.
std::int64_t rows_left(const SchedulerState& state, const StepPlan& plan) {
  std::int64_t rows = 0;
  for (const PlannedRun& run : plan.runs) {
    rows += run.count;
  }
  std::int64_t left = state.config.max_batch_tokens - rows;
  if (state.config.max_gap_seconds > 0 && state.pace.row_seconds > 0) {
    const double more = seconds_left(state, plan) / state.pace.row_seconds;
    left = std::min(left, static_cast<std::int64_t>(std::clamp(more, 0.0, 1e6)));
  }
  return left;
}

// Returns how many assumed rows behind the last token of a run are allowed at most.
std::int32_t most_assumed(const SchedulerState& state, const QueuedRequest& queued,
                          const PlannedRun& run) {
  const std::int32_t end = run.first + run.count;
  std::int32_t most = queued.total_tokens - end;
  if (state.ledger->config().open_format()) {
    const std::int32_t block_tokens = state.ledger->config().block_tokens;
    most = std::min(most, block_tokens - 1 - end % block_tokens);
  }
  return most;
}

// Finds running requests, fast where they are asked for in the order of their arrival.
class RunningFinder {
 public:
  explicit RunningFinder(const RequestLine& running) : running_(running), next_(running.begin()) {}

  const QueuedRequest& find(RequestId id) {
    const auto has_id = [id](const QueuedRequest* queued) { return queued->request.id == id; };
    next_ = std::find_if(next_, running_.end(), has_id);
    if (next_ == running_.end()) {
      next_ = std::ranges::find_if(running_, has_id);
    }
    QUIRE_CHECK(next_ != running_.end(), "a planned run of a request that does not run");
    return **next_;
  }

 private:
  const RequestLine& running_;
  RequestLine::const_iterator next_;
};

RoomNeed less(const RoomNeed& all, const RoomNeed& part) {
  return {.own = all.own - part.own, .open = all.open - part.open};
}

// Returns whether rows stand in blocks that are there.
bool needs_nothing(const RoomNeed& need) { return need.own <= 0 && need.open <= 0; }

}  // namespace

double seconds_left(const SchedulerState& state, const StepPlan& plan) {
  if (state.config.max_gap_seconds <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  double seconds = state.pace.fixed_seconds;
  for (const PlannedRun& run : plan.runs) {
    seconds += state.pace.seconds(work_of(run.first, run.count));
  }
  return state.config.max_gap_seconds - seconds;
}

std::int64_t assume_rows(const SchedulerState& state, std::span<const std::int32_t> wanted,
                         StepPlan& plan) {
  if (plan.preempts() || !plan.admit.empty()) {
    return 0;
  }
  QUIRE_CHECK(wanted.size() == plan.runs.size(), "assumed rows for other runs than those planned");
  std::int64_t rows = rows_left(state, plan);
  RoomLeft room = RoomLeft::of_free_blocks(*state.ledger);
  RunningFinder finder(state.running);
  for (const PlannedRun& run : plan.runs) {
    room.take(room.need_of(finder.find(run.request).running_sequence(), run.count));
  }
  for (std::size_t i = 0; i < plan.runs.size() && rows > 0; ++i) {
    PlannedRun& run = plan.runs[i];
    if (wanted[i] == 0 || !run.samples) {
      continue;
    }
    const QueuedRequest& queued = finder.find(run.request);
    const SeqId sequence = queued.running_sequence();
    const RoomNeed certain = room.need_of(sequence, run.count);
    std::int32_t count = std::min(wanted[i], most_assumed(state, queued, run));
    count = static_cast<std::int32_t>(std::min<std::int64_t>(count, rows));
    const auto more = [&] { return less(room.need_of(sequence, run.count + count), certain); };
    const auto fits = [&] { return needs_nothing(more()) || room.fits(more()); };
    while (count > 0 && !fits()) {
      --count;
    }
    if (count > 0) {
      room.take(more());
      run.count += count;
      run.assumed = count;
      rows -= count;
    }
  }
  return std::max<std::int64_t>(rows, 0);
}

void book(SchedulerState& state, const QueuedRequest& queued, const ScheduledRun& run,
          std::span<const TokenId> sampled) {
  kv::Sequences& sequences = state.ledger->sequences();
  const bool takes = run.samples && !sampled.empty();
  const auto right = sampled.first(takes ? sampled.size() - 1 : 0);
  QUIRE_CHECK(std::ssize(right) <= run.assumed, "more tokens were right than were assumed");
  for (const TokenId token : right) {
    sequences.append(run.sequence, token);
  }
  sequences.advance(run.sequence,
                    run.count - run.assumed + static_cast<std::int32_t>(right.size()));
  if (takes) {
    sequences.append(run.sequence, sampled.back());
  }
  if (std::ssize(right) < run.assumed) {  // nothing is cut but room
    const auto tokens = static_cast<std::int32_t>(sequences.tokens(run.sequence).size());
    QUIRE_CHECK(sequences.rollback(run.sequence, tokens).ok(), "all tokens can be kept");
  }
  if (queued.tenant >= 0) {
    state.tenants.charge(queued.tenant,
                         static_cast<double>(right.size()) * state.config.decode_weight);
  }
}

}  // namespace quire::sched
