#include "quire/chunks/part_reuse.h"

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
std::int64_t take(std::int64_t wanted, PartReuse& part) {
  const std::int64_t taken = std::min(wanted, part.reused);
  part.reused -= taken;
  return taken;
}

}  // namespace

std::int64_t reused_tokens(std::span<const PartReuse> parts) {
  std::int64_t reused = 0;
  for (const PartReuse& part : parts) {
    reused += part.reused;
  }
  return reused;
}

void take_off(std::span<const std::int64_t> recomputed, std::vector<PartReuse>& parts) {
  std::int64_t twice = 0;
  for (std::size_t i = 0; i < recomputed.size(); ++i) {
    twice += recomputed[i] - take(recomputed[i], parts[i]);
  }
  for (PartReuse& part : std::views::reverse(parts)) {
    twice -= take(twice, part);
  }
}

Sources sources_of(std::span<const PartReuse> parts, std::int64_t recomputed) {
  Sources sources;
  const auto add = [&](const std::string& what, std::int64_t tokens) {
    if (tokens > 0) {
      sources.emplace_back(what, tokens);
    }
  };
  for (const PartReuse& part : parts) {
    add(base::str_cat("computed ", part.name), part.computed);
    add(part.from_prefix_cache ? "prefix_cache" : base::str_cat("chunk ", part.name), part.reused);
  }
  add("computed again", recomputed);
  return sources;
}

}  // namespace quire::chunks
