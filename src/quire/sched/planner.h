// The pure half of the scheduler: plain state in, plan out.
#pragma once

#include <cstdint>

#include "quire/sched/state.h"
#include "quire/sched/types.h"

namespace quire::sched {

// Makes the plan of Scheduler::plan; replaces what `plan` holds.
void make_plan(const SchedulerState& state, StepPlan& plan);

// Makes the plan of a step that has any number of rows and takes any time. Returns the blocks of
// the pool's own format that it leaves over.
std::int64_t make_plan_of_any_rows(const SchedulerState& state, StepPlan& plan);

}  // namespace quire::sched
