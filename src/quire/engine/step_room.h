// The error of a request that cannot have what it needs.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/engine/active_request.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"

namespace quire::engine {

// Returns whether blocks may have come back since the plan was made, from a holder or with a task.
[[nodiscard]] bool may_get_blocks(const Step& step);
// Returns the error of a request that needs more than there is, though nothing runs beside it.
[[nodiscard]] Error no_room_for(Step& step, const ActiveRequest& stuck);

}  // namespace quire::engine
