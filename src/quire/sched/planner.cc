#include "quire/sched/planner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/sched/room_left.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

// Makes one plan. All counts are from the ledger as it is; nothing of it is changed.
class Planner {
 public:
  explicit Planner(const SchedulerState& state)
      : state_(state), ledger_(*state.ledger), sequences_(ledger_.sequences()), room_(ledger_) {}

  void make(StepPlan& plan) {
    plan.clear();
    plan.version = state_.version;
    rows_left_ = state_.config.max_batch_tokens;
    const std::optional<RequestId> needy = first_needy();
    if (needy && !plan_running(plan)) {
      plan.stuck = needy;
    } else if (plan.preempt.empty()) {
      admit(plan);
    }
    if (plan.stuck) {
      drop_waiting(plan);
    }
  }

 private:
  [[nodiscard]] const QueuedRequest& queued(std::int32_t index) const {
    return *state_.line[static_cast<std::size_t>(index)];
  }

  [[nodiscard]] std::span<const TokenId> known_tokens(const QueuedRequest& queued) const {
    return queued.sequence ? sequences_.tokens(*queued.sequence)
                           : std::span<const TokenId>(queued.request.prompt);
  }

  // Counts tokens whose KV is wanted, computed or not.
  [[nodiscard]] std::int32_t wanted_tokens(const QueuedRequest& queued) const {
    return std::min(static_cast<std::int32_t>(known_tokens(queued).size()), queued.total_tokens);
  }

  [[nodiscard]] std::int32_t pending_tokens(const QueuedRequest& queued) const {
    return wanted_tokens(queued) - sequences_.num_computed(queued.running_sequence());
  }

  [[nodiscard]] std::optional<RequestId> first_needy() const {
    for (std::int32_t i = 0; i < state_.num_running; ++i) {
      if (pending_tokens(queued(i)) > 0) {
        return queued(i).request.id;
      }
    }
    return std::nullopt;
  }

  // Keeps as many of the running as blocks allow, from the oldest on. False when none could run.
  bool plan_running(StepPlan& plan) {
    std::vector<SeqId> dropped;
    for (std::int32_t keep = state_.num_running; keep > 0; --keep) {
      if (fit_blocks(keep, dropped, plan.runs) && !plan.runs.empty()) {
        return true;
      }
      dropped.push_back(queued(keep - 1).running_sequence());
      plan.preempt.push_back(queued(keep - 1).request.id);
    }
    plan.clear();
    return false;
  }

  // Makes runs of the first `keep`. Gives rows to those that want one token, of which there are
  // never more than rows, then to the others, oldest first. A run may get none.
  void share_rows(std::int32_t keep, std::vector<PlannedRun>& runs) {
    runs.clear();
    rows_left_ = state_.config.max_batch_tokens;
    for (std::int32_t i = 0; i < keep; ++i) {
      const std::int32_t pending = pending_tokens(queued(i));
      const std::int32_t first = sequences_.num_computed(queued(i).running_sequence());
      runs.push_back(make_run(queued(i), first, pending));
      rows_left_ -= pending == 1 ? 1 : 0;
    }
    for (PlannedRun& run : runs) {
      if (run.count > 1) {
        run.count = std::min(run.count, rows_left_);
        rows_left_ -= run.count;
      }
    }
  }

  // Fits blocks to the first `keep` if the KV of `dropped` were gone. Returns false when one that
  // got rows cannot have a single one of them.
  bool fit_blocks(std::int32_t keep, std::span<const SeqId> dropped,
                  std::vector<PlannedRun>& runs) {
    share_rows(keep, runs);
    room_ = RoomLeft(ledger_, dropped);
    for (std::int32_t i = 0; i < keep; ++i) {
      PlannedRun& run = runs[static_cast<std::size_t>(i)];
      const SeqId id = queued(i).running_sequence();
      const std::int32_t count = room_.rows_that_fit(id, run.count);
      if (run.count > 0 && count == 0) {
        return false;
      }
      room_.take(room_.need_of(id, count));
      run = make_run(queued(i), run.first, count);
    }
    std::erase_if(runs, [](const PlannedRun& run) { return run.count == 0; });
    return true;
  }

  [[nodiscard]] PlannedRun make_run(const QueuedRequest& queued, std::int32_t first,
                                    std::int32_t count) const {
    const auto known = static_cast<std::int32_t>(known_tokens(queued).size());
    return {.request = queued.request.id,
            .first = first,
            .count = count,
            .samples = first + count == known && queued.request.max_new_tokens > 0};
  }

  void admit(StepPlan& plan) {
    const std::int64_t places = std::min({std::int64_t{state_.config.max_running},
                                          std::int64_t{state_.config.max_batch_tokens},
                                          static_cast<std::int64_t>(state_.line.size())});
    for (std::int32_t i = state_.num_running; i < places && rows_left_ > 0; ++i) {
      if (!admit_one(queued(i), plan)) {
        break;
      }
    }
    if (state_.num_running == 0 && plan.admit.empty() && !state_.line.empty()) {
      plan.stuck = queued(0).request.id;
    }
  }

  // Makes waiting requests give up the KV that they brought along, if that helps.
  void drop_waiting(StepPlan& plan) const {
    std::vector<SeqId> sequences;
    std::vector<RequestId> requests;
    for (auto i = static_cast<std::size_t>(state_.num_running); i < state_.line.size(); ++i) {
      const std::optional<SeqId> id = state_.line[i]->sequence;
      if (id && sequences_.num_computed(*id) > 0) {
        sequences.push_back(*id);
        requests.push_back(state_.line[i]->request.id);
      }
    }
    if (ledger_.preemption().blocks_freed_by_drop(sequences) > 0) {
      plan.stuck.reset();
      plan.drop = std::move(requests);
    }
  }

  // Returns the cached prefix that the request would find. A composition holds its segments
  // already.
  [[nodiscard]] kv::PrefixMatch known_kv(const QueuedRequest& waiting) const {
    const bool plain = !waiting.sequence || sequences_.is_plain(*waiting.sequence);
    if (!plain || !waiting.request.reuse) {
      return {};
    }
    const std::string& salt =
        waiting.sequence ? sequences_.salt(*waiting.sequence) : waiting.request.salt;
    return ledger_.cache().probe(known_tokens(waiting), salt);
  }

  // Admits a waiting request if there is room. All known tokens must fit, not only those of this
  // step. A prompt takes all rows until it is done, so nobody else is admitted meanwhile and only
  // decoding can take its blocks away. Cached blocks that it attaches are no longer evictable, so
  // they count as taken. Two that attach the same ones pay twice here; at worst the second waits
  // for the next step.
  bool admit_one(const QueuedRequest& waiting, StepPlan& plan) {
    if (waiting.sequence && (sequences_.num_computed(*waiting.sequence) > 0 ||
                             sequences_.format(*waiting.sequence) != kv::kOwnFormat)) {
      return admit_fork(waiting, *waiting.sequence, plan);
    }
    const kv::PrefixMatch match = known_kv(waiting);
    const std::int64_t missing = ledger_.min_blocks(wanted_tokens(waiting)) - match.blocks;
    const std::int64_t fresh = room_.own() - match.evictable_blocks;
    const std::int64_t open = ledger_.config().open_format() ? 1 : 0;
    if (missing > fresh || !may_open(open, plan) || !room_.has_state_behind(match)) {
      return false;
    }
    const std::int64_t block_tokens = ledger_.config().block_tokens;
    const std::int64_t tail = match.tokens % block_tokens;
    const auto count = static_cast<std::int32_t>(
        std::min({std::int64_t{wanted_tokens(waiting) - match.tokens}, std::int64_t{rows_left_},
                  fresh * block_tokens - tail}));
    room_.attach(match);
    room_.take({.own = (tail + count + block_tokens - 1) / block_tokens, .open = open});
    admit_rows(waiting, match.tokens, count, plan);
    return true;
  }

  // Returns whether there is an open block. It shall need no slab, unless nothing else runs.
  [[nodiscard]] bool may_open(std::int64_t open, const StepPlan& plan) const {
    return open <= room_.open() || state_.num_running + std::ssize(plan.admit) == 0;
  }

  // Admits a sequence that comes with KV or room of its own, whose last block may have to be
  // copied.
  bool admit_fork(const QueuedRequest& waiting, SeqId id, StepPlan& plan) {
    const std::int32_t pending = pending_tokens(waiting);
    RoomNeed missing = room_.need_of(id, pending);
    missing.own = std::min(missing.own, ledger_.min_blocks(wanted_tokens(waiting)) + 1);
    if (!room_.fits(missing)) {
      return false;
    }
    const std::int32_t count = room_.rows_that_fit(id, std::min(pending, rows_left_));
    room_.take(room_.need_of(id, count));
    admit_rows(waiting, sequences_.num_computed(id), count, plan);
    return true;
  }

  void admit_rows(const QueuedRequest& waiting, std::int32_t first, std::int32_t count,
                  StepPlan& plan) {
    plan.admit.push_back(waiting.request.id);
    if (count > 0) {
      plan.runs.push_back(make_run(waiting, first, count));
      rows_left_ -= count;
    }
  }

  const SchedulerState& state_;
  const kv::Ledger& ledger_;
  const kv::Sequences& sequences_;
  std::int32_t rows_left_ = 0;  // rows left of the step
  RoomLeft room_;
};

}  // namespace

void make_plan(const SchedulerState& state, StepPlan& plan) { Planner(state).make(plan); }

}  // namespace quire::sched
