// First stage of a plan: cuts entries into tiles. Pure; no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {

// The division of the query heads of a KV head among tiles.
struct TileShape {
  std::int32_t kv_heads = 0;
  std::int32_t group = 0;           // query heads per KV head
  std::int32_t heads = 0;           // heads of a tile
  std::int32_t tiles_per_head = 0;  // tiles of one KV head, over the same rows
};
[[nodiscard]] TileShape tile_shape(const AttentionShape& shape);

struct Tile {
  WorkItem item;  // over all its pieces
  std::size_t first_range = 0;
  std::size_t num_ranges = 0;
};

// Tiles, entry after entry. Those of an entry ascend by KV head, row and head. An entry whose rows
// see nothing has none.
struct Tiles {
  // Query rows of one entry that are stacked, with the ranges of their tiles.
  struct RowGroup {
    std::int32_t first_row = 0;
    std::int32_t rows = 0;
    std::size_t first_range = 0;
    std::size_t num_ranges = 0;
  };

  std::vector<Tile> tiles;
  std::vector<std::size_t> first_tile;  // [entries + 1]
  std::vector<TokenRange> ranges;  // canonical pieces with a token that some row of a tile sees;
                                   // disjoint and ascending in each tile
  std::int64_t blocks_read = 0;    // PlanCounters::blocks_read
  std::int32_t max_block = -1;     // the largest block id that is read

  std::vector<RowGroup> groups;         // scratch, of the entry in hand
  std::vector<TokenRange> seen, cells;  // scratch, of the group in hand

  [[nodiscard]] std::span<const Tile> of(std::int32_t entry) const {
    const auto i = static_cast<std::size_t>(entry);
    return std::span(tiles).subspan(first_tile[i], first_tile[i + 1] - first_tile[i]);
  }
  [[nodiscard]] std::span<const TokenRange> pieces_of(const Tile& tile) const {
    return std::span(ranges).subspan(tile.first_range, tile.num_ranges);
  }
};

struct TileOptions {
  std::int32_t block_tokens = 0;
  std::int32_t window_tokens = 0;  // 0 = none
  int threads = 0;
};

// Replaces what `tiles` holds, and uses its memory again. Preconditions (QUIRE_CHECK): every
// visible token lies in a block with an id >= 0.
void cut_tiles(const TileShape& shape, std::span<const Entry> entries, const TileOptions& options,
               Tiles& tiles);

}  // namespace quire::attention
