// Fourth stage of a plan: lines up the tiles of each level group as chains of items. Pure; no
// device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_level_groups.h"
#include "quire/attention/plan_tiles.h"

namespace quire::attention {

// Chains [first, first + count) of a plan, which one level group has. There are none where its rows
// see nothing.
struct ChainGroup {
  std::int32_t first = 0;
  std::int32_t count = 0;
  bool split = false;  // true: split as in the level group
};

struct Chains {
  std::vector<ChainGroup> groups;  // one for each level group
  std::vector<const Tile*> line;   // scratch: tiles over the same rows, in the order of chains
};

// Fills items, chains and num_result_slots of `plan`, which are empty. No chain is after another.
void make_chains(std::span<const Entry> entries, const Tiles& tiles,
                 std::span<const LevelGroup> levels, Chains& chains, AttentionPlan& plan);

}  // namespace quire::attention
