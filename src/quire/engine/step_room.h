// Room for a step that lacks blocks, and the error of a request that cannot have what it needs.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/engine/active_request.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"

namespace quire::engine {

// Returns whether blocks may have come back since the plan was made, from a holder or with a task.
[[nodiscard]] bool may_get_blocks(const Step& step);
// Lets partly filled blocks that rest share blocks where few are free, so that less is evicted.
// Does so once in a number of steps; with `must` now. Makes a bounded number of moves. Returns
// whether blocks have become free.
bool coalesce(Step& step, bool must);
// Returns the error of a request that needs more than there is, though nothing runs beside it.
[[nodiscard]] Error no_room_for(Step& step, const ActiveRequest& stuck);

}  // namespace quire::engine
