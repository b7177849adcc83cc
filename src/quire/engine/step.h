// The parts of one step of the engine, as functions over a Step:
//
//   plan_step -> launch_step -> await_step -> sample_step -> settle_step -> deliver_step
//
// Thread rule: the engine thread.
#pragma once

#include <span>

#include "quire/base/stopwatch.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

// Fills `now`. Returns false when there is nothing to compute.
[[nodiscard]] bool plan_step(Step& step);
// Builds the batch of `running` and starts it. Ordered copies must be done (step_loads.h).
[[nodiscard]] Status launch_step(Step& step, RunningStep& running, base::Stopwatch& watch);
// Blocks until `now` is computed. Sets `logits`, [rows][vocabulary] of the rows that have some.
[[nodiscard]] Status await_step(Step& step, std::span<float>& logits, base::Stopwatch& watch);
// Counts what `now` has computed, in `seconds`, and tells listeners.
void count_computed(Step& step, double seconds);
// Notes how much of their prompts requests found, in their first step.
void note_admissions(Step& step);
// Books the KV and the tokens of `now`. A request that ends here gives its blocks back.
void settle_step(Step& step);
// Sends callers what became certain.
void deliver_step(Step& step);

// Waits for the device, and forgets what was launched.
void drop_steps(Step& step);
// Ends a request that is in the step, with an error.
void fail_request(Step& step, RequestId id, Error error);

}  // namespace quire::engine
