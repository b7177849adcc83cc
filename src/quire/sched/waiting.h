// Waiting requests: what their KV needs, and what makes way for them. Changes nothing but plans.
#pragma once

#include <cstdint>

#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/sched/ranking.h"
#include "quire/sched/room_left.h"
#include "quire/sched/state.h"
#include "quire/sched/types.h"

namespace quire::sched {

// Returns whether the request comes with KV or room of its own, whose last block may have to be
// copied.
[[nodiscard]] bool brings_kv(const QueuedRequest& waiting, const kv::Sequences& sequences);

// Counts tokens whose KV is wanted and not there. Precondition: the request has a sequence.
[[nodiscard]] std::int32_t pending_of(const QueuedRequest& queued, const kv::Sequences& sequences);

// Returns whether there is room for all known tokens of a waiting request, not only those of this
// step. `alone`: nothing else would run, so an open block may need a slab.
[[nodiscard]] bool has_room(const QueuedRequest& waiting, const kv::PrefixMatch& match,
                            const RoomLeft& room, bool alone, const kv::Ledger& ledger);

// Returns whether a request that has room beside others shall wait all the same. It does where at
// most half of all blocks can be had and less than one in 32 would stay (docs/adr/0065).
[[nodiscard]] bool slows(const QueuedRequest& waiting, const kv::PrefixMatch& match,
                         const RoomLeft& room, const kv::Ledger& ledger);

// Makes waiting requests give up the KV that they brought along, if that helps.
void drop_waiting(const SchedulerState& state, StepPlan& plan);

// Takes the KV of running requests away that the first waiting one outranks, the lowest first,
// until blocks for all its known tokens are there. Takes none where that would not do.
void make_way(const Ranking& ranking, const kv::Ledger& ledger, StepPlan& plan);

}  // namespace quire::sched
