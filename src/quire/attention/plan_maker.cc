#include "quire/attention/plan_maker.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_chains.h"
#include "quire/attention/plan_level_groups.h"
#include "quire/attention/plan_levels.h"
#include "quire/attention/plan_tiles.h"
#include "quire/attention/plan_waves.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"

namespace quire::attention {

// Holds the results of all stages, so that the next plan uses their memory.
struct PlanMaker::Memory {
  Tiles tiles;
  Levels levels;
  std::vector<LevelGroup> level_groups;
  Chains chains;
  std::vector<std::int32_t> last_chain;
};

namespace {

// Lists the query rows of all entries, entry after entry.
void list_queries(std::span<const Entry> entries, AttentionPlan& plan) {
  for (const Entry& entry : entries) {
    plan.first_query.push_back(static_cast<std::int32_t>(plan.query_positions.size()));
    std::int32_t last = -1;
    for (const EntryRow& row : entry.rows) {
      QUIRE_CHECK(row.row > last, "rows of an entry must ascend");
      last = row.row;
      plan.query_positions.push_back(row.query_position);
    }
    plan.num_rows = std::max(plan.num_rows, last + 1);
  }
  plan.counters.entries = static_cast<std::int64_t>(entries.size());
  plan.counters.rows = static_cast<std::int64_t>(plan.query_positions.size());
}

}  // namespace

PlanMaker::PlanMaker() : memory_(std::make_unique<Memory>()) {}
PlanMaker::~PlanMaker() = default;

void PlanMaker::make(const AttentionShape& shape, std::span<const Entry> entries,
                     std::int32_t block_tokens, std::int32_t window_tokens, int threads,
                     AttentionPlan& plan) {
  QUIRE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
              "heads must be a multiple of kv_heads");
  QUIRE_CHECK(block_tokens >= 1 && block_tokens <= kPieceTokens, "block_tokens outside 1..256");
  auto& [tiles, levels, level_groups, chains, last_chain] = *memory_;
  const TileShape tile = tile_shape(shape);
  plan.clear();
  list_queries(entries, plan);
  cut_tiles(tile, entries, {block_tokens, window_tokens, threads}, tiles);
  place_in_levels(entries, plan.num_rows, levels);
  group_levels(entries, tiles, levels.levels, threads, level_groups);
  make_chains(entries, tiles, level_groups, chains, plan);
  make_waves(tile, entries, chains.groups, last_chain, plan);
  plan.counters.blocks_read = tiles.blocks_read;
  plan.max_block = tiles.max_block;
}

AttentionPlan make_plan(const AttentionShape& shape, std::span<const Entry> entries,
                        std::int32_t block_tokens, std::int32_t window_tokens, int threads) {
  AttentionPlan plan;
  PlanMaker().make(shape, entries, block_tokens, window_tokens, threads, plan);
  return plan;
}

}  // namespace quire::attention
