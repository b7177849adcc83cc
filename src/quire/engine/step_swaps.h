// Preempted requests of steps: what becomes of their KV, and what is told of it.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/engine/step_state.h"

namespace quire::engine {

// Copies the KV of requests that the plan will preempt to host memory. Does so where that is asked
// for, or is faster than computing it again.
void swap_out(Step& step);
// Brings back the KV of requests that the plan has admitted. Other KV is computed by later steps.
void swap_in(Step& step);
// Books preemptions and admissions of the plan that was committed.
void note_plan(Step& step);
// Notes the decision that `now` was, and its seconds.
void note_decision(Step& step, double seconds);
// Ends requests whose deadline has passed, waiting and running ones.
void end_overdue(Step& step);

}  // namespace quire::engine
