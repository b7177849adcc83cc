// Second stage of a plan: puts entries into levels that follow each other. Pure; no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/entry.h"

namespace quire::attention {

// An entry with rows, and the level that it stands in.
struct LevelEntry {
  std::int32_t level = 0;
  std::int32_t first_row = 0;  // row of the batch
  std::int32_t entry = 0;
};
using Level = std::span<const LevelEntry>;  // entries that share no row, by their first row

// Levels in the order in which they update rows. A row's entries stand in levels in list order.
// Entries without rows are left out.
struct Levels {
  std::vector<Level> levels;
  std::vector<LevelEntry> entries;       // entries to which `levels` refers
  std::vector<std::int32_t> next_level;  // scratch, [rows]
};

// Replaces what `levels` holds, and uses its memory again. `num_rows`: 1 + the largest row.
void place_in_levels(std::span<const Entry> entries, std::int32_t num_rows, Levels& levels);

// Returns the entry of `level` with the rows of `like`, or -1.
[[nodiscard]] std::int32_t find_same_rows(std::span<const Entry> entries, Level level,
                                          const LevelEntry& like);

// Returns true if every entry of `next` has the rows of one entry of `level`.
[[nodiscard]] bool continues(std::span<const Entry> entries, Level level, Level next);

}  // namespace quire::attention
