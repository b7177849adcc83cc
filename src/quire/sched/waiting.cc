#include "quire/sched/waiting.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/sched/ranking.h"
#include "quire/sched/room_left.h"
#include "quire/sched/state.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {

bool brings_kv(const QueuedRequest& waiting, const kv::Sequences& sequences) {
  return waiting.sequence && (sequences.num_computed(*waiting.sequence) > 0 ||
                              sequences.format(*waiting.sequence) != kv::kOwnFormat);
}

std::int32_t pending_of(const QueuedRequest& queued, const kv::Sequences& sequences) {
  return wanted_tokens(queued, sequences) - sequences.num_computed(queued.running_sequence());
}

namespace {

// Returns the blocks of the pool's own format that a waiting request still lacks for all its known
// tokens.
std::int64_t missing_blocks(const QueuedRequest& waiting, const kv::PrefixMatch& match,
                            const RoomLeft& room, const kv::Ledger& ledger) {
  const std::int64_t fewest = ledger.min_blocks(wanted_tokens(waiting, ledger.sequences()),
                                                behind_window_of(waiting, ledger.sequences()));
  if (brings_kv(waiting, ledger.sequences())) {
    const std::int32_t pending = pending_of(waiting, ledger.sequences());
    return std::min(room.need_of(waiting.running_sequence(), pending).own, fewest + 1);
  }
  return fewest - match.blocks + match.evictable_blocks;
}

}  // namespace

bool has_room(const QueuedRequest& waiting, const kv::PrefixMatch& match, const RoomLeft& room,
              bool alone, const kv::Ledger& ledger) {
  const std::int64_t missing = missing_blocks(waiting, match, room, ledger);
  if (brings_kv(waiting, ledger.sequences())) {
    RoomNeed need =
        room.need_of(waiting.running_sequence(), pending_of(waiting, ledger.sequences()));
    need.own = missing;
    return room.fits(need);
  }
  const std::int64_t open = ledger.config().open_format() ? 1 : 0;
  return missing <= room.own() && (open <= room.open() || alone) && room.has_state_behind(match);
}

bool slows(const QueuedRequest& waiting, const kv::PrefixMatch& match, const RoomLeft& room,
           const kv::Ledger& ledger) {
  constexpr std::int64_t kShare = 32;
  const std::int64_t all = ledger.counts().blocks_total;
  return 2 * room.own() <= all && has_room(waiting, match, room, false, ledger) &&
         room.own() - missing_blocks(waiting, match, room, ledger) < all / kShare;
}

void drop_waiting(const SchedulerState& state, StepPlan& plan) {
  const kv::Ledger& ledger = *state.ledger;
  std::vector<SeqId> sequences;
  std::vector<RequestId> requests;
  for (const QueuedRequest* waiting : state.waiting) {
    const std::optional<SeqId> id = waiting->sequence;
    if (id && ledger.sequences().num_computed(*id) + ledger.points().num_owed(*id) > 0) {
      sequences.push_back(*id);
      requests.push_back(waiting->request.id);
    }
  }
  if (ledger.preemption().blocks_freed_by_drop(sequences) > 0) {
    plan.stuck.reset();
    plan.drop = std::move(requests);
  }
}

void make_way(const Ranking& ranking, const kv::Ledger& ledger, StepPlan& plan) {
  if (ranking.outranked_running() == 0) {
    return;
  }
  const QueuedRequest& waiting = *ranking.waiting().front();
  const kv::PrefixMatch match = find_known_kv(waiting, ledger);
  const std::span<const QueuedRequest* const> line = ranking.running();
  std::vector<SeqId> dropped;
  for (std::size_t lost = 0; lost <= ranking.outranked_running(); ++lost) {
    const std::size_t keep = line.size() - lost;
    RoomLeft room(ledger, dropped);
    for (const PlannedRun& run : plan.runs) {
      const auto kept = std::ranges::find(line.first(keep), run.request,
                                          [](const auto* queued) { return queued->request.id; });
      if (kept != line.begin() + static_cast<std::ptrdiff_t>(keep)) {
        room.take(room.need_of((*kept)->running_sequence(), run.count));
      }
    }
    const bool alone = lost == line.size();
    if (has_room(waiting, match, room, alone, ledger) &&
        (lost == 0 || alone || !slows(waiting, match, room, ledger))) {
      for (std::size_t i = 0; i < lost; ++i) {
        const RequestId id = line[line.size() - 1 - i]->request.id;
        plan.make_way.push_back(id);
        std::erase_if(plan.runs, [id](const PlannedRun& run) { return run.request == id; });
      }
      return;
    }
    if (lost < ranking.outranked_running()) {
      dropped.push_back(line[keep - 1]->running_sequence());
    }
  }
}

}  // namespace quire::sched
