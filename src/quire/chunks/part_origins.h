// Part origins: of each part of a composition, how many of its tokens have KV that was there and
// how many were computed for the call. What a composed request reports of its reuse follows from
// them: its sources add up to its cached tokens and, with the query, to the tokens computed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire::chunks {

struct PartOrigin {
  std::string name;  // of the part, as sources show it
  std::int64_t reused = 0;
  std::int64_t computed = 0;
  bool from_prefix_cache = false;  // what is reused of it
};

[[nodiscard]] std::int64_t reused_tokens(std::span<const PartOrigin> origins);

// What blend computes again, [parts] tokens, is not reused. Of a part that was computed for this
// call it is computed twice and comes off what is reused elsewhere, from the end on: as far as that
// goes, what is reused and what was computed add up to the parts' tokens.
void take_off(std::span<const std::int64_t> recomputed, std::vector<PartOrigin>& origins);

// ReuseReport::sources, without `recomputed` tokens: those are a source of their own.
using Sources = std::vector<std::pair<std::string, std::int64_t>>;
[[nodiscard]] Sources sources_of(std::span<const PartOrigin> origins, std::int64_t recomputed);

}  // namespace quire::chunks
