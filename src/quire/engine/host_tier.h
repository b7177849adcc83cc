// Host memory for restore points that the pool gives up (kv_store/host_points.h).
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

struct EngineCore;

// Gives a core so many bytes of it; 0: none. kUnsupported for models without states, and on an
// accelerator.
[[nodiscard]] Status open_host_points(EngineCore& core, std::int64_t budget_bytes);

// Returns the length of the longest point in host memory from which a prompt can go on, which
// computes its last token; 0 for none.
[[nodiscard]] std::int32_t host_prefix(const EngineCore& core, std::span<const TokenId> tokens,
                                       std::string_view salt);

}  // namespace quire::engine
