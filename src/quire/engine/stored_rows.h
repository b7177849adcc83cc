// Tells a step and its observers how the KV of its rows was stored, where a format may change or
// refuse it.
//
// Thread rule: engine thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/engine/step_state.h"
#include "quire/result.h"
#include "quire/sched/types.h"

namespace quire::engine {

// Returns whether a request of the step wants to know what storing its KV changes.
[[nodiscard]] bool measures_kv(const Step& step, const RunningStep& running);
// Returns an error if the format of KV cannot hold what run `index` of the step has computed.
[[nodiscard]] Status check_stored(Step& step, const sched::ScheduledRun& run, std::size_t index);
// Returns how many of `count` rows of the batch stand before one that the format of KV cannot hold.
[[nodiscard]] std::int32_t usable_rows(Step& step, std::int32_t first_row, std::int32_t count);
// Returns how many assumed rows of a run do.
[[nodiscard]] std::int32_t usable_assumed_rows(Step& step, const sched::ScheduledRun& run,
                                               std::size_t index);
// Tells the request's observer what storing the run's KV has changed, if that was measured.
void tell_stored(Step& step, const sched::ScheduledRun& run, std::size_t index);

}  // namespace quire::engine
