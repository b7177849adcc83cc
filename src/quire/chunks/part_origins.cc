#include "quire/chunks/part_origins.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "quire/base/str.h"

namespace quire::chunks {
namespace {

// Returns what there was to take.
std::int64_t take(std::int64_t wanted, PartOrigin& origin) {
  const std::int64_t taken = std::min(wanted, origin.reused);
  origin.reused -= taken;
  return taken;
}

}  // namespace

std::int64_t reused_tokens(std::span<const PartOrigin> origins) {
  std::int64_t reused = 0;
  for (const PartOrigin& origin : origins) {
    reused += origin.reused;
  }
  return reused;
}

void take_off(std::span<const std::int64_t> recomputed, std::vector<PartOrigin>& origins) {
  std::int64_t twice = 0;
  for (std::size_t i = 0; i < recomputed.size(); ++i) {
    twice += recomputed[i] - take(recomputed[i], origins[i]);
  }
  for (PartOrigin& origin : std::views::reverse(origins)) {
    twice -= take(twice, origin);
  }
}

Sources sources_of(std::span<const PartOrigin> origins, std::int64_t recomputed) {
  Sources sources;
  const auto add = [&](const std::string& what, std::int64_t tokens) {
    if (tokens > 0) {
      sources.emplace_back(what, tokens);
    }
  };
  for (const PartOrigin& origin : origins) {
    add(base::str_cat("computed ", origin.name), origin.computed);
    add(origin.from_prefix_cache ? "prefix_cache" : base::str_cat("chunk ", origin.name),
        origin.reused);
  }
  add("computed again", recomputed);
  return sources;
}

}  // namespace quire::chunks
