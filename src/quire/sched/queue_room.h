// The waiting requests that lack blocks or a place, rather than rows of a step.
#pragma once

#include <cstdint>

#include "quire/sched/state.h"

namespace quire::sched {

// Counts the requests, not preempted ones, that would wait for blocks or places if a step had any
// number of rows. Followers count, too. Changes nothing. Cost: as a plan.
[[nodiscard]] std::int32_t count_without_room(const SchedulerState& state);

}  // namespace quire::sched
