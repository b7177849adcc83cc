// Which rows a selector of mode blend chooses, from its definition alone.
#pragma once

#include <cstdint>
#include <vector>

#include "dense_oracle.h"
#include "quire/chunks.h"
#include "scene.h"

namespace quire::chunks {

using Tokens = std::vector<std::int32_t>;  // indices into the joined ids

// Those that rank the context tokens and take a share of them.
constexpr Selector kByShare[] = {Selector::kFirst, Selector::kRandom, Selector::kValueDeviation,
                                 Selector::kQueryAttention};

// How many of `tokens`: rounded up.
[[nodiscard]] std::int32_t wanted(std::int32_t percent, std::int32_t tokens);

// One score per context token: the places in their contexts, the first one best; the outputs of
// splitmix64, the largest best; or what the oracle computes.
[[nodiscard]] std::vector<double> scores_of(Selector selector, const Scene& scene,
                                            const DenseModel& oracle, std::uint64_t seed);

struct Choice {
  Tokens tokens;                // ascending
  std::int32_t next_best = -1;  // the first that was not chosen
  double gap = 1;               // how far below the last chosen one it is, as a share of that
};

// The best `percent` of the context tokens, of equals those that come first.
[[nodiscard]] Choice choose(const Scene& scene, const std::vector<double>& scores,
                            std::int32_t percent);

}  // namespace quire::chunks
