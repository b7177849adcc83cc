#include "quire/engine/prompt_parts.h"

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
  const std::int64_t cached = cache.match(tokens, salt);
  std::vector<ReusePart> parts;
  if (cached > 0) {
    parts.push_back({.tokens = cached, .hit = true, .reason = "hit"});
  }
  if (cached < std::ssize(tokens)) {
    parts.push_back({.position = cached,
                     .tokens = std::ssize(tokens) - cached,
                     .reason = kv::to_text(cache.explain(tokens, salt))});
  }
  return parts;
}

}  // namespace quire::engine
