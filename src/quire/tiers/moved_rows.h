// Rows of runs on their way to other places of blocks.
//
// Thread rule: any thread but the engine's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {

class TierService;

// Rows of a run: tokens of which the first one is in slot `first` of its blocks.
struct RunRows {
  std::vector<std::pair<std::vector<BlockId>, kv::FormatId>> parts;  // see kv::parts_of
  std::int32_t first = 0;
  std::vector<TokenId> tokens;
  std::int32_t stored_from = 0;  // position that the key of the first token is rotated to
};

// Copies rows, which are there, to the first slots of a segment. Blocks that were written whole are
// opened: their rows are plain there. kOutOfBlocks.
[[nodiscard]] Result<HeldRef> copy_rows(engine::Engine& engine, TierService& tiers,
                                        const RunRows& rows);

}  // namespace quire::tiers
