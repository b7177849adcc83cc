// A pass that gives the hidden states of a chunk, whose KV is there already.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/chunks/blend.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::chunks {

// Returns the rows before `layer` of all tokens of the last of `uses`, [tokens][hidden size].
// Changes no KV. Preconditions: the KV of all uses is there, and the last stands where its KV was
// computed; 0 < layer < the number of layers. Fails with kOutOfBlocks, and as Decoder::forward
// does. Cost: a prefill of those tokens through the layers below `layer`.
[[nodiscard]] Result<std::vector<float>> hidden_before(const BlendContext& context,
                                                       std::span<const kv::SegmentUse> uses,
                                                       std::int32_t layer);

}  // namespace quire::chunks
