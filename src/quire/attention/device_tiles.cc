#include "quire/attention/device_tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/divide.h"

namespace quire::attention {
namespace {

constexpr std::int64_t kFewTokenTile = 32;  // shortest range of an item of few columns

// Tells whether the kernel of few columns computes an entry. Where the two families differ in the
// last bits and ranges are fixed, one of them computes everything.
bool is_few(const Entry& entry, std::int64_t rows, std::int32_t group,
            const DevicePlanOptions& options) {
  if (options.one_kernel) {
    return rows * group <= (few_are_like_many(options) ? kFewColumnsOfOneKernel : kFewColumns);
  }
  return options.range_tokens == 0 && std::ssize(entry.rows) * group <= kFewColumns;
}

// Returns the tokens that rows of an entry see together; none: begin >= end.
TokenRange seen_by(const Entry& entry, std::span<const EntryRow> rows, std::int32_t window_tokens) {
  TokenRange seen = {std::numeric_limits<std::int32_t>::max(), 0};
  for (const EntryRow& row : rows) {
    const TokenRange range = visible_tokens(entry, row, window_tokens);
    if (range.begin < range.end) {
      seen = {std::min(seen.begin, range.begin), std::max(seen.end, range.end)};
    }
  }
  return seen;
}

// Returns 2 if every tile of many columns has a neighbour that sees the same, else 1. (In a window
// some rows of a piece may see something in one tile and none in the other.) Where all tiles are of
// many columns, prefill, few have such a neighbour, and the kernel for that knows no pairs.
std::int32_t find_width(const DeviceTiles& tiles, const DevicePlanOptions& options) {
  constexpr int kLeastWorkers = 4;
  const bool mixed = tiles.few.total() > 0 && tiles.many.total() > 0;
  if (!options.one_kernel || options.window_tokens != 0 || !mixed ||
      options.many_workers < kLeastWorkers) {
    return 1;
  }
  const DeviceTile* left = nullptr;  // without its neighbour so far
  for (const DeviceTile& tile : tiles.tiles) {
    if (tile.few) {
      continue;
    }
    if (left != nullptr && (left->entry != tile.entry || left->seen.end != tile.seen.end)) {
      return 1;
    }
    left = left == nullptr ? &tile : nullptr;
  }
  return left == nullptr ? 2 : 1;
}

// Returns the token tiles of each tile of many columns, or pair of them.
std::vector<std::int64_t> many_token_tiles(const DeviceTiles& tiles) {
  std::vector<std::int64_t> counts;
  bool second = false;  // true: the second of a pair
  for (const DeviceTile& tile : tiles.tiles) {
    if (tile.few) {
      continue;
    }
    if (!second) {
      counts.push_back(base::divide_up(tile.seen.end, kTokenTile) - tile.seen.begin / kTokenTile);
    }
    second = tiles.width == 2 && !second;
  }
  return counts;
}

}  // namespace

bool few_are_like_many(const DevicePlanOptions& options) {
  return options.one_kernel && options.range_tokens > 0;
}

std::int64_t token_tile(const DevicePlanOptions& options, bool few) {
  return few && !options.one_kernel ? kFewTokenTile : kTokenTile;
}

DeviceTiles cut_device_tiles(const AttentionShape& shape, std::span<const Entry> entries,
                             const DevicePlanOptions& options) {
  DeviceTiles made;
  made.tiles.reserve(entries.size());
  const std::int32_t group = shape.heads / shape.kv_heads;
  const std::int32_t height = std::max(1, kManyColumns / group);
  std::int32_t first_block = 0, first_query = 0;
  for (const Entry& entry : entries) {
    const auto num_rows = static_cast<std::int32_t>(entry.rows.size());
    for (std::int32_t first = 0; first < num_rows; first += height) {
      const std::int32_t count = std::min(height, num_rows - first);
      const std::span<const EntryRow> rows =
          entry.rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      const TokenRange seen = seen_by(entry, rows, options.window_tokens);
      if (seen.begin >= seen.end) {
        continue;
      }
      const bool few = is_few(entry, count, group, options);
      (few ? made.few : made.many).add(seen.end - seen.begin, shape.kv_heads);
      made.tiles.push_back({.entry = &entry,
                            .first_block = first_block,
                            .first_query = first_query,
                            .first = first,
                            .count = count,
                            .few = few,
                            .seen = seen});
    }
    first_block += static_cast<std::int32_t>(entry.blocks.size());
    first_query += num_rows;
  }
  made.width = find_width(made, options);
  made.many_token_tiles = many_token_tiles(made);
  return made;
}

}  // namespace quire::attention
