// Strong ids of the library. No id converts to another (tests/compile_fail/ids.cc).
#pragma once

#include <compare>
#include <cstdint>

#include "quire/types.h"

namespace quire {

// Names one KV block of a pool by its index in [0, num_blocks). -1 names none.
struct BlockId {
  std::int32_t value = -1;
  friend auto operator<=>(BlockId, BlockId) = default;
};

// Names a sequence of one ledger. A ledger never uses an id twice.
struct SeqId {
  std::uint64_t value = 0;
  friend auto operator<=>(SeqId, SeqId) = default;
};

}  // namespace quire
