#include "quire/engine/prompt_parts.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "quire/engine/engine_core.h"
#include "quire/engine/host_tier.h"
#include "quire/kv/prefix_cache.h"
#include "quire/kv/types.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {

PromptReuse prompt_reuse(const EngineCore& core, std::span<const TokenId> tokens,
                         std::string_view salt) {
  PromptReuse reuse{.cached = core.ledger.cache().match(tokens, salt)};
  const std::int32_t host = host_prefix(core, tokens, salt);
  reuse.host = host > reuse.cached ? host : 0;
  return reuse;
}

std::vector<ReusePart> prompt_parts(const kv::PrefixCache& cache, std::span<const TokenId> tokens,
                                    std::string_view salt, const PromptReuse& reuse) {
  const std::int32_t usable = std::max(reuse.cached, reuse.host);
  const std::int64_t matched = std::max(cache.probe(tokens, salt).known_tokens, usable);
  const std::int64_t known = std::min(matched, std::ssize(tokens) - 1);
  std::vector<ReusePart> parts;
  if (reuse.cached > 0) {
    parts.push_back({.tokens = reuse.cached, .hit = true, .reason = "hit"});
  }
  if (usable > reuse.cached) {
    parts.push_back({.position = reuse.cached,
                     .tokens = usable - reuse.cached,
                     .hit = true,
                     .reason = "hit in host memory"});
  }
  if (usable < std::ssize(tokens)) {
    parts.push_back({.position = usable,
                     .tokens = std::ssize(tokens) - usable,
                     .reason = kv::to_text(cache.explain(tokens, salt, usable))});
  }
  for (ReusePart& part : parts) {
    part.matched_tokens = matched;
    part.usable_tokens = usable;
    part.replayed_tokens = std::max<std::int64_t>(known - usable, 0);
  }
  return parts;
}

}  // namespace quire::engine
