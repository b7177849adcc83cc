#include "quire/attention/plan_chains.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_level_groups.h"
#include "quire/attention/plan_levels.h"
#include "quire/attention/plan_tiles.h"
#include "quire/attention/tile.h"

namespace quire::attention {
namespace {

// Appends the item to the last chain, or to a new one.
void append_item(const WorkItem& item, bool begins, AttentionPlan& plan) {
  if (begins) {
    plan.chains.push_back({.first_item = static_cast<std::int32_t>(plan.items.size())});
  }
  plan.items.push_back(item);
  ++plan.chains.back().num_items;
}

// Lines up the tiles of `first` and of the entries with its rows in the levels behind its own.
void line_up(std::span<const Entry> entries, const Tiles& tiles, std::span<const Level> levels,
             const LevelEntry& first, std::vector<const Tile*>& line) {
  line.clear();
  for (const Level level : levels) {
    const std::int32_t entry = find_same_rows(entries, level, first);
    if (entry >= 0) {
      for (const Tile& tile : tiles.of(entry)) {
        line.push_back(&tile);
      }
    }
  }
  if (levels.size() > 1) {
    std::ranges::sort(line, {}, [](const Tile* tile) {
      const WorkItem& item = tile->item;  // entries stand in levels in list order
      return std::tuple(item.kv_head, item.first_row, item.first_head, item.entry);
    });
  }
}

// Appends a chain for each tile of the first level, over all levels.
void append_chains(std::span<const Entry> entries, const Tiles& tiles,
                   std::span<const Level> levels, std::vector<const Tile*>& line,
                   AttentionPlan& plan) {
  for (const LevelEntry& first : levels.front()) {
    line_up(entries, tiles, levels, first, line);
    const WorkItem* last = nullptr;
    for (const Tile* tile : line) {
      const WorkItem& item = tile->item;
      const bool begins = last == nullptr || last->first_row != item.first_row ||
                          last->first_head != item.first_head;
      append_item(item, begins, plan);
      last = &item;
    }
  }
}

// Appends a chain of one item for each piece of a tile. Takes result slots from `slots` on.
void append_pieces(const Tile& tile, std::span<const TokenRange> pieces, std::int32_t& slots,
                   AttentionPlan& plan) {
  for (const TokenRange range : pieces) {
    for (std::int32_t piece = range.begin; piece < range.end; ++piece) {
      WorkItem item = tile.item;
      item.first_piece = piece;
      item.last_piece = piece + 1;
      item.result_slot = slots;
      slots += item.rows * item.heads;
      append_item(item, true, plan);
    }
  }
}

void append_split(const Tiles& tiles, std::span<const Level> levels, AttentionPlan& plan) {
  std::int32_t slots = 0;
  for (const Level level : levels) {
    for (const LevelEntry& entry : level) {
      for (const Tile& tile : tiles.of(entry.entry)) {
        append_pieces(tile, tiles.pieces_of(tile), slots, plan);
      }
    }
  }
  plan.num_result_slots = std::max(plan.num_result_slots, slots);
}

}  // namespace

void make_chains(std::span<const Entry> entries, const Tiles& tiles,
                 std::span<const LevelGroup> levels, Chains& chains, AttentionPlan& plan) {
  chains.groups.clear();
  for (const LevelGroup& group : levels) {
    const auto first = static_cast<std::int32_t>(plan.chains.size());
    if (group.split) {
      append_split(tiles, group.levels, plan);
    } else {
      append_chains(entries, tiles, group.levels, chains.line, plan);
    }
    chains.groups.push_back({.first = first,
                             .count = static_cast<std::int32_t>(plan.chains.size()) - first,
                             .split = group.split});
  }
}

}  // namespace quire::attention
