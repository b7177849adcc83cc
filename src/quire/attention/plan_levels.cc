#include "quire/attention/plan_levels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"

namespace quire::attention {
namespace {

// Returns the level of an entry with these rows, behind all levels that update one of them before.
std::int32_t take_level(std::span<const EntryRow> rows, std::vector<std::int32_t>& next_level) {
  const auto next = [&](const EntryRow& row) -> std::int32_t& {
    return next_level[static_cast<std::size_t>(row.row)];
  };
  std::int32_t level = 0;
  for (const EntryRow& row : rows) {
    level = std::max(level, next(row));
  }
  for (const EntryRow& row : rows) {
    next(row) = level + 1;
  }
  return level;
}

}  // namespace

void place_in_levels(std::span<const Entry> entries, std::int32_t num_rows, Levels& levels) {
  std::vector<LevelEntry>& placed = levels.entries;
  placed.clear();
  levels.next_level.assign(static_cast<std::size_t>(num_rows), 0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::span<const EntryRow> rows = entries[i].rows;
    if (!rows.empty()) {
      placed.push_back({.level = take_level(rows, levels.next_level),
                        .first_row = rows.front().row,
                        .entry = static_cast<std::int32_t>(i)});
    }
  }
  std::ranges::sort(
      placed, {}, [](const LevelEntry& entry) { return std::pair(entry.level, entry.first_row); });
  levels.levels.clear();
  for (auto first = placed.begin(); first != placed.end();) {
    const auto end = std::find_if(
        first, placed.end(), [&](const LevelEntry& entry) { return entry.level != first->level; });
    levels.levels.emplace_back(first, end);
    first = end;
  }
}

std::int32_t find_same_rows(std::span<const Entry> entries, Level level, const LevelEntry& like) {
  const auto found = std::lower_bound(
      level.begin(), level.end(), like.first_row,
      [](const LevelEntry& other, std::int32_t row) { return other.first_row < row; });
  if (found == level.end()) {
    return -1;
  }
  const bool same = std::ranges::equal(entries[static_cast<std::size_t>(found->entry)].rows,
                                       entries[static_cast<std::size_t>(like.entry)].rows, {},
                                       &EntryRow::row, &EntryRow::row);
  return same ? found->entry : -1;
}

bool continues(std::span<const Entry> entries, Level level, Level next) {
  return std::ranges::all_of(
      next, [&](const LevelEntry& entry) { return find_same_rows(entries, level, entry) >= 0; });
}

}  // namespace quire::attention
