// Parts of a prompt: what the prefix cache and host memory hold of it, and why they hold no more.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/engine/engine_core.h"
#include "quire/kv/prefix_cache.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {

// How many tokens of a prompt need no computing.
struct PromptReuse {
  std::int32_t cached = 0;  // those that the prefix cache has
  std::int32_t host = 0;    // up to where host memory goes on; 0 where it does not
};

// Returns what can be reused of a prompt now.
[[nodiscard]] PromptReuse prompt_reuse(const EngineCore& core, std::span<const TokenId> tokens,
                                       std::string_view salt);

// Returns the reused parts of a prompt and the rest, without empty ones. Changes nothing.
[[nodiscard]] std::vector<ReusePart> prompt_parts(const kv::PrefixCache& cache,
                                                  std::span<const TokenId> tokens,
                                                  std::string_view salt, const PromptReuse& reuse);

}  // namespace quire::engine
