// PointKeeper: whoever keeps restore points elsewhere when the ledger gives them up.
//
// Thread rule: one thread, as for the ledger.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "quire/base/ids.h"
#include "quire/types.h"

namespace quire::kv {

// A restore point that the ledger is about to lose, while its state and its KV are still there.
// Valid during the call.
struct LosingPoint {
  std::string_view salt;
  std::span<const TokenId> tokens;
  std::int32_t state = 0;           // number of the state, which has the KV behind full blocks
  std::span<const BlockId> blocks;  // full blocks, where their bytes lie before copies are made
};

// Functions that the ledger calls in the middle of its operations. They change nothing of it and
// throw nothing.
struct PointKeeper {
  // Returns whether the point is kept.
  std::function<bool(const LosingPoint&)> keep;
  // Forgets all points, since the cache was cleared.
  std::function<void()> forget;
};

}  // namespace quire::kv
