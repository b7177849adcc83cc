// Part parts: how many tokens of each part of a composition have KV that was there, and how many
// were computed for the call. The reuse report of a composed request follows from them. Its sources
// add up to its cached tokens and, with the query, to the tokens computed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire::chunks {

struct PartReuse {
  std::string name;  // name of the part, as sources show it
  std::int64_t reused = 0;
  std::int64_t computed = 0;
  bool from_prefix_cache = false;  // true: the reused KV is from the prefix cache
};

[[nodiscard]] std::int64_t reused_tokens(std::span<const PartReuse> parts);

// Takes `recomputed`, [parts] tokens that blend computes again, off what is reused. A part that was
// computed for this call is computed twice: its tokens come off what other parts reuse, from the
// last part on. Reused and computed tokens then add up to the parts' tokens, as far as that goes.
void take_off(std::span<const std::int64_t> recomputed, std::vector<PartReuse>& parts);

// ReuseReport::sources, without `recomputed` tokens: those are a source of their own.
using Sources = std::vector<std::pair<std::string, std::int64_t>>;
[[nodiscard]] Sources sources_of(std::span<const PartReuse> parts, std::int64_t recomputed);

}  // namespace quire::chunks
