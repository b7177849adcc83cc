// Strong ids used inside the library; none converts to another.
#pragma once

#include <compare>
#include <cstdint>

#include "quire/types.h"

namespace quire {

// Index of one KV block in [0, num_blocks). Never a token position.
struct BlockId {
  std::int32_t value = -1;
  friend auto operator<=>(BlockId, BlockId) = default;
};

// Identity of a sequence in one ledger, never reused.
struct SeqId {
  std::uint64_t value = 0;
  friend auto operator<=>(SeqId, SeqId) = default;
};

}  // namespace quire
