// Third stage of a plan: decides which levels are computed together, and how. Pure; no device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/attention/plan_levels.h"
#include "quire/attention/plan_tiles.h"

namespace quire::attention {

// Neighbouring levels that are computed together.
struct LevelGroup {
  std::span<const Level> levels;
  // Every piece is an item with a result slot of its own. Else the levels continue each other: the
  // items of a tile over all of them are one chain.
  bool split = false;
};

// Replaces what `groups` holds: all levels, in order. Groups refer to `levels`.
void group_levels(std::span<const Entry> entries, const Tiles& tiles, std::span<const Level> levels,
                  int threads, std::vector<LevelGroup>& groups);

}  // namespace quire::attention
