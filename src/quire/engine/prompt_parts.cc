#include "quire/engine/prompt_parts.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "quire/kv/prefix_cache.h"
#include "quire/kv/types.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {

std::vector<ReusePart> prompt_parts(const kv::PrefixCache& cache, std::span<const TokenId> tokens,
                                    std::string_view salt) {
  const kv::PrefixMatch match = cache.probe(tokens, salt);
  const std::int64_t cached = match.tokens;
  const std::int64_t known = std::min(std::int64_t{match.known_tokens}, std::ssize(tokens) - 1);
  std::vector<ReusePart> parts;
  if (cached > 0) {
    parts.push_back({.tokens = cached, .hit = true, .reason = "hit"});
  }
  if (cached < std::ssize(tokens)) {
    parts.push_back({.position = cached,
                     .tokens = std::ssize(tokens) - cached,
                     .reason = kv::to_text(cache.explain(tokens, salt))});
  }
  for (ReusePart& part : parts) {
    part.matched_tokens = match.known_tokens;
    part.usable_tokens = cached;
    part.replayed_tokens = std::max<std::int64_t>(known - cached, 0);
  }
  return parts;
}

}  // namespace quire::engine
