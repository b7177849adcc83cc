// The maps of chunks on states, of models with layers that carry one: how they come into the blocks
// of the pool (docs/adr/0048). They lie in blocks of the chunk's own, beside those of its KV.
//
// Thread rule: the engine thread, but for most_map_blocks() and make_maps().
#pragma once

#include <cstdint>
#include <optional>

#include "quire/base/ids.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"

namespace quire::engine {
class Engine;
struct EngineCore;
}  // namespace quire::engine

namespace quire::chunks {

// Returns the most blocks of the pool's own format that the maps of a chunk of so many tokens take.
// They are in 32 bits where KV is float32, else in 16. A model without states has none.
[[nodiscard]] std::int32_t most_map_blocks(engine::Engine& engine, std::int64_t tokens);
// Makes maps for a chunk that is to be computed. None for a model without states. kOutOfBlocks
// where the machine refuses memory.
[[nodiscard]] Result<std::optional<model::StateMaps>> make_maps(engine::Engine& engine,
                                                                std::int64_t tokens);

// Writes the maps of a chunk, all of whose rows are computed in `sequence`, to the blocks that the
// sequence holds for them. Gives back those that it does not need. Fails as StateMaps::pack does.
[[nodiscard]] Status store_maps(engine::EngineCore& core, SeqId sequence,
                                const model::StateMaps& maps);

}  // namespace quire::chunks
