// Parts of a prompt: what the prefix cache holds of it, and why it holds no more.
//
// Thread rule: the engine thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "quire/kv/prefix_cache.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {

// Returns the cached part of a prompt and the rest, without empty ones. Changes nothing.
[[nodiscard]] std::vector<ReusePart> prompt_parts(const kv::PrefixCache& cache,
                                                  std::span<const TokenId> tokens,
                                                  std::string_view salt);

}  // namespace quire::engine
