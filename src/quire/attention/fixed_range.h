// kFixedRangeTokens: how a GPU cuts a run whose rows may not depend on their batch.
#pragma once

#include <cstdint>

#include "quire/attention/tile.h"

namespace quire::attention {

// DevicePlanOptions::range_tokens then. Entries that begin or end in between would be cut
// differently, so requests share whole ranges only.
inline constexpr std::int32_t kFixedRangeTokens = 8 * kPieceTokens;

}  // namespace quire::attention
