// The pure half of the scheduler: plain state in, plan out.
#pragma once

#include <cstdint>

#include "quire/sched/state.h"
#include "quire/sched/types.h"

namespace quire::sched {

// Makes the plan of Scheduler::plan; replaces what `plan` holds.
void make_plan(const SchedulerState& state, StepPlan& plan);

// Counts the requests, not preempted ones, that would wait for blocks or places if a step had any
// number of rows.
[[nodiscard]] std::int32_t count_without_room(const SchedulerState& state);

}  // namespace quire::sched
