// One step of the engine, from the plan to the delivered tokens.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/engine/step_state.h"
#include "quire/result.h"

namespace quire::engine {

// Computes the next step. Returns when its tokens are delivered, or at once without work.
[[nodiscard]] Status compute_next(Step& step);

}  // namespace quire::engine
