// A request of the engine as the scheduler gets it.
#pragma once

#include "quire/base/ids.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/session_service.h"
#include "quire/sched/types.h"

namespace quire::engine {

// Returns what the scheduler gets of a request. Its session is known from now on, and its sequence
// belongs to it. Engine thread.
[[nodiscard]] sched::Request scheduled_request(EngineCore& core, SessionService& sessions,
                                               const EngineOptions& options,
                                               const NewRequest& request, RequestId id);

}  // namespace quire::engine
