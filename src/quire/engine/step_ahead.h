// Running ahead: the next step is launched before this one is awaited, if it is this one over again
// whatever is chosen (docs/adr/0022). The host then works while the device computes.
//
// Thread rule: the engine thread.
#pragma once

#include <span>

#include "quire/base/stopwatch.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"

namespace quire::engine {

// Launches the step behind `now`, if it is that one again, a token further. Rows of requests that
// end with `now` are computed for nothing. A step that cannot be launched here is planned in its
// turn.
void launch_ahead(Step& step, base::Stopwatch& watch);

// Computes `now` again where the device left a token to the host, and `next` has overwritten the
// logits. Drops `next` then. Sets `logits`.
[[nodiscard]] Status recompute_if_overtaken(Step& step, std::span<float>& logits,
                                            base::Stopwatch& watch);

}  // namespace quire::engine
