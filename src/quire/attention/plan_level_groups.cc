#include "quire/attention/plan_level_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/attention/plan_levels.h"
#include "quire/attention/plan_tiles.h"
#include "quire/attention/tile.h"
#include "quire/base/divide.h"

namespace quire::attention {
namespace {

constexpr int kItemsPerThread = 3;     // fewer tiles than this: pieces may be computed apart
constexpr int kResultSlotTokens = 64;  // about as long as a result slot and its merge take

std::int64_t count_tiles(const Tiles& tiles, Level level) {
  std::int64_t count = 0;
  for (const LevelEntry& entry : level) {
    count += std::ssize(tiles.of(entry.entry));
  }
  return count;
}

bool has_few_tiles(const Tiles& tiles, Level level, int threads) {
  return threads > 1 && count_tiles(tiles, level) < std::int64_t{kItemsPerThread} * threads;
}

bool has_one_piece_per_tile(const Tiles& tiles, Level level) {
  return std::ranges::all_of(level, [&](const LevelEntry& entry) {
    return std::ranges::all_of(tiles.of(entry.entry), [](const Tile& tile) {
      return tile.item.last_piece - tile.item.first_piece == 1;
    });
  });
}

// Compares chains to pieces for levels that continue each other. With a chain for each tile, the
// busiest thread must have less to do than its share of all pieces. Each piece costs a result slot
// and a merge beside its tokens.
bool chains_are_faster(std::span<const Entry> entries, std::span<const Level> levels,
                       std::int64_t tiles, int threads) {
  std::int64_t tokens = 0;
  std::int64_t pieces = 0;
  for (const Level level : levels) {
    for (const LevelEntry& entry : level) {
      const std::int32_t of_entry = entries[static_cast<std::size_t>(entry.entry)].num_tokens;
      tokens += of_entry;
      pieces += base::divide_up(of_entry, kPieceTokens);
    }
  }
  const std::int64_t chains_of_busiest = (tiles + threads - 1) / threads;
  return chains_of_busiest * threads * tokens <= tiles * (tokens + kResultSlotTokens * pieces);
}

// Returns true if levels with few tiles each are to be cut into pieces that run side by side. There
// must be something to cut, and something gained by it.
bool splits(std::span<const Entry> entries, const Tiles& tiles, std::span<const Level> levels,
            int threads) {
  const bool one_chain = std::ranges::adjacent_find(levels, [&](Level a, Level b) {
                           return !continues(entries, a, b);
                         }) == levels.end();
  if (!one_chain) {
    return true;
  }
  const std::int64_t chains = count_tiles(tiles, levels.front());
  return !chains_are_faster(entries, levels, chains, threads) &&
         (levels.size() > 1 || !has_one_piece_per_tile(tiles, levels.front()));
}

}  // namespace

void group_levels(std::span<const Entry> entries, const Tiles& tiles, std::span<const Level> levels,
                  int threads, std::vector<LevelGroup>& groups) {
  groups.clear();
  for (std::size_t first = 0, end = 0; first < levels.size(); first = end) {
    end = first + 1;
    const bool few = has_few_tiles(tiles, levels[first], threads);
    while (end < levels.size() && (few ? has_few_tiles(tiles, levels[end], threads)
                                       : continues(entries, levels[end - 1], levels[end]))) {
      ++end;
    }
    const std::span<const Level> together = levels.subspan(first, end - first);
    groups.push_back(
        {.levels = together, .split = few && splits(entries, tiles, together, threads)});
  }
}

}  // namespace quire::attention
