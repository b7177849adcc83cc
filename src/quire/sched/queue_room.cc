#include "quire/sched/queue_room.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "quire/kv/ledger.h"
#include "quire/sched/planner.h"
#include "quire/sched/ranking.h"
#include "quire/sched/state.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {
namespace {

bool admits(const StepPlan& plan, RequestId id) {
  return std::ranges::find(plan.admit, id) != plan.admit.end();
}

// Returns the blocks that a follower needs beside those that it shares with the first request.
std::int64_t blocks_of_follower(const QueuedRequest& first, const kv::Ledger& ledger) {
  const std::int32_t known = wanted_tokens(first, ledger.sequences());
  const std::int64_t all = ledger.min_blocks(known, behind_window_of(first, ledger.sequences()));
  const bool shares = !first.sequence && first.request.reuse && ledger.config().prefix_cache;
  const std::int64_t shared = shares ? (known - 1) / ledger.config().block_tokens : 0;
  return std::max<std::int64_t>(all - shared, 1);
}

// Counts followers of new requests that have no place or block behind the plan, which leaves
// `blocks` over.
std::int64_t followers_without_room(const SchedulerState& state, const StepPlan& plan,
                                    std::int64_t blocks) {
  const SchedulerConfig& config = state.config;
  std::int64_t places = std::int64_t{std::min(config.max_running, config.max_batch_tokens)} -
                        std::ssize(state.running) - std::ssize(plan.admit);
  std::int64_t lack = 0;
  for (const QueuedRequest* waiting : state.waiting) {
    const std::int64_t followers = waiting->request.followers;
    if (followers == 0 || !admits(plan, waiting->request.id)) {
      lack += followers;
      continue;
    }
    const std::int64_t each = blocks_of_follower(*waiting, *state.ledger);
    const std::int64_t fit =
        std::clamp<std::int64_t>(std::min(places, blocks / each), 0, followers);
    places -= fit;
    blocks -= fit * each;
    lack += followers - fit;
  }
  return lack;
}

}  // namespace

std::int32_t count_without_room(const SchedulerState& state) {
  StepPlan plan;
  const std::int64_t blocks_left = make_plan_of_any_rows(state, plan);
  const auto alone = std::ranges::count_if(state.waiting, [&plan](const QueuedRequest* waiting) {
    return waiting->progress.preemptions == 0 && !admits(plan, waiting->request.id);
  });
  return static_cast<std::int32_t>(alone + followers_without_room(state, plan, blocks_left));
}

}  // namespace quire::sched
