// Last stage of a plan: groups of chains to waves. Pure; no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_chains.h"
#include "quire/attention/plan_tiles.h"

namespace quire::attention {

// Fills plan.waves, which is empty. Chains of a group that may join the wave before are told which
// chain they are after, and sorted by it. `last_chain` is scratch.
void make_waves(const TileShape& shape, std::span<const Entry> entries,
                std::span<const ChainGroup> groups, std::vector<std::int32_t>& last_chain,
                AttentionPlan& plan);

}  // namespace quire::attention
