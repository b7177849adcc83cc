// Restore points in host memory on their way back to requests. Their bits stay the same.
//
// A point that comes back stays in host memory too. So it costs no second copy when the pool gives
// it up again. Nothing here does anything without host_kv_budget.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/base/ids.h"
#include "quire/engine/step_state.h"

namespace quire::engine {

// Notes the points that requests of the plan can go on from. Returns true where that changes the
// plan, which is to be made again.
[[nodiscard]] bool note_host_points(Step& step);
// Brings back KV and state of a request that was admitted. Does so where a point in host memory is
// behind more tokens than it has. Without room the tokens are computed.
void bring_back(Step& step, RequestId id, SeqId sequence);

}  // namespace quire::engine
