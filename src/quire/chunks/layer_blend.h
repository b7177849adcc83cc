// Blend by layers: all context tokens of a composition run through some layers again, behind
// everything before them. They start from hidden states that their chunks have kept, or from the
// embeddings (docs/adr/0046).
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>

#include "quire/chunk_types.h"
#include "quire/chunks/blend.h"
#include "quire/kv/composition.h"
#include "quire/result.h"

namespace quire::chunks {

// Returns whether a blend computes layers, and not tokens.
[[nodiscard]] inline bool is_by_layers(const Blend& how) { return how.layers || how.only_layer; }

// Computes Blend::layers, or takes Blend::only_layer from a pass through all layers. Preconditions:
// those of blend(), and what CompositionPlanner::check_layers() checks. Fails with kOutOfBlocks
// when the copies do not fit. Cost: those layers of a prefill of the context tokens.
[[nodiscard]] Result<BlendResult> blend_layers(const BlendContext& context, const Blend& how,
                                               const kv::ResolvedComposition& composition);

// Returns its cost for a model of `layers` layers.
[[nodiscard]] BlendCost layer_blend_cost(const Blend& how,
                                         const kv::ResolvedComposition& composition,
                                         std::int32_t block_tokens, std::int32_t layers);

}  // namespace quire::chunks
