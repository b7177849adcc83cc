// Recovery from a step that fails.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/engine/step_state.h"

namespace quire::engine {

// Computes the next step. Where that fails, ends all requests with the error, refused memory too.
void compute_next_or_fail(Step& step);

}  // namespace quire::engine
