// kFixedRangeTokens: how a GPU cuts a run whose rows may not depend on their batch.
#pragma once

#include <cstdint>

#include "quire/attention/tile.h"

namespace quire::attention {

// DevicePlanOptions::range_tokens then. Entries that begin or end in between would be cut
// differently, so requests share whole ranges only. Smaller ranges share more and give a request
// more multiprocessors; larger ones give a prompt fewer parts to merge (ADR 0042).
inline constexpr std::int32_t kFixedRangeTokens = 4 * kPieceTokens;

}  // namespace quire::attention
