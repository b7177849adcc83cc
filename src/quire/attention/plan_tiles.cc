#include "quire/attention/plan_tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/base/divide.h"

namespace quire::attention {
namespace {

constexpr int kTilesPerThread = 8;  // tiles of several strips, where there are more strips than so

// Returns the query rows of a tile of an entry that has `num_rows`. A tile of several strips brings
// its KV to the near caches once for all of them. It has several as long as the threads have tiles
// enough to share.
std::int32_t tile_rows(const TileShape& shape, std::int32_t num_rows, int threads) {
  const std::int32_t strip_rows = kStripRows / shape.heads;
  const std::int32_t strips =
      base::divide_up(num_rows, strip_rows) * shape.kv_heads * shape.tiles_per_head;
  return strip_rows * std::clamp(strips / (kTilesPerThread * threads), 1, kMaxStrips);
}

// Lists the tokens that each of `rows` sees, without empty ranges, by first token.
void find_seen(const Entry& entry, std::span<const EntryRow> rows, std::int32_t window_tokens,
               std::vector<TokenRange>& seen) {
  seen.clear();
  for (const EntryRow& row : rows) {
    const TokenRange range = visible_tokens(entry, row, window_tokens);
    if (range.begin < range.end) {
      seen.push_back(range);
    }
  }
  std::ranges::sort(seen, {}, &TokenRange::begin);
}

// Appends the union of `seen` to `cells`, counted in cells of `tokens` tokens.
void append_cells(std::span<const TokenRange> seen, std::int32_t tokens,
                  std::vector<TokenRange>& cells) {
  const std::size_t before = cells.size();
  for (const TokenRange range : seen) {
    const TokenRange cell = {range.begin / tokens, base::divide_up(range.end, tokens)};
    if (cells.size() == before || cells.back().end < cell.begin) {
      cells.push_back(cell);
    } else {
      cells.back().end = std::max(cells.back().end, cell.end);
    }
  }
}

// Counts the blocks in tiles.cells, which each of `readers` tiles reads, and checks their ids.
void visit_blocks(const Entry& entry, std::int32_t readers, Tiles& tiles) {
  for (const TokenRange range : tiles.cells) {
    QUIRE_CHECK(static_cast<std::size_t>(range.end) <= entry.blocks.size(),
                "an entry has fewer blocks than its tokens need");
    tiles.blocks_read += std::int64_t{readers} * (range.end - range.begin);
    std::int32_t least = 0, most = tiles.max_block;
    for (const std::int32_t id :
         entry.blocks.subspan(static_cast<std::size_t>(range.begin),
                              static_cast<std::size_t>(range.end - range.begin))) {
      least = std::min(least, id);
      most = std::max(most, id);
    }
    QUIRE_CHECK(least >= 0, "a visible token lies in a freed block");
    tiles.max_block = most;
  }
}

// Cuts the rows of an entry evenly. Groups that see nothing are left out.
void group_rows(const TileShape& shape, const Entry& entry, const TileOptions& options,
                Tiles& tiles) {
  tiles.groups.clear();
  const auto num_rows = static_cast<std::int32_t>(entry.rows.size());
  if (num_rows == 0) {
    return;
  }
  const std::int32_t rows = base::divide_up(
      num_rows, base::divide_up(num_rows, tile_rows(shape, num_rows, options.threads)));
  for (std::int32_t first = 0; first < num_rows; first += rows) {
    const std::int32_t count = std::min(rows, num_rows - first);
    find_seen(entry,
              entry.rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
              options.window_tokens, tiles.seen);
    if (tiles.seen.empty()) {
      continue;
    }
    const std::size_t first_range = tiles.ranges.size();
    append_cells(tiles.seen, kPieceTokens, tiles.ranges);
    tiles.groups.push_back({.first_row = first,
                            .rows = count,
                            .first_range = first_range,
                            .num_ranges = tiles.ranges.size() - first_range});
    tiles.cells.clear();
    append_cells(tiles.seen, options.block_tokens, tiles.cells);
    visit_blocks(entry, shape.kv_heads * shape.tiles_per_head, tiles);
  }
}

// Appends the tiles of tiles.groups, the rows of one entry.
void append_tiles(const TileShape& shape, std::int32_t entry, Tiles& tiles) {
  for (std::int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    for (const Tiles::RowGroup& group : tiles.groups) {
      const std::int32_t first_piece = tiles.ranges[group.first_range].begin;
      const std::int32_t last_piece = tiles.ranges[group.first_range + group.num_ranges - 1].end;
      for (std::int32_t head = 0; head < shape.group; head += shape.heads) {
        tiles.tiles.push_back({.item = {.entry = entry,
                                        .kv_head = kv_head,
                                        .first_row = group.first_row,
                                        .rows = group.rows,
                                        .first_head = kv_head * shape.group + head,
                                        .heads = std::min(shape.heads, shape.group - head),
                                        .first_piece = first_piece,
                                        .last_piece = last_piece},
                               .first_range = group.first_range,
                               .num_ranges = group.num_ranges});
      }
    }
  }
}

}  // namespace

TileShape tile_shape(const AttentionShape& shape) {
  const std::int32_t group = shape.heads / shape.kv_heads;
  const std::int32_t heads = std::min(group, kStripRows);
  return {.kv_heads = shape.kv_heads,
          .group = group,
          .heads = heads,
          .tiles_per_head = base::divide_up(group, heads)};
}

void cut_tiles(const TileShape& shape, std::span<const Entry> entries, const TileOptions& options,
               Tiles& tiles) {
  tiles.tiles.clear();
  tiles.first_tile.assign(1, 0);
  tiles.ranges.clear();
  tiles.blocks_read = 0;
  tiles.max_block = -1;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    group_rows(shape, entries[i], options, tiles);
    append_tiles(shape, static_cast<std::int32_t>(i), tiles);
    tiles.first_tile.push_back(tiles.tiles.size());
  }
}

}  // namespace quire::attention
