// The limit of the queue: how many requests may wait (max_waiting).
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>

#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/result.h"

namespace quire::engine {

// Returns the bytes of the KV that a request may need.
[[nodiscard]] std::int64_t kv_bytes(const EngineCore& core, const NewRequest& request);

// Returns kQueueFull when more requests than `max_waiting` wait for blocks or a place. The newest
// `added` of them, with KV of `bytes` bytes, are those to refuse. Requests that were preempted do
// not count. Cost: O(1), and a plan where more wait.
[[nodiscard]] Status check_queue(const EngineCore& core, std::int32_t max_waiting,
                                 std::int64_t added, std::int64_t bytes);

}  // namespace quire::engine
