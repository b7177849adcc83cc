// Lists of items of many columns that end together. Each tile fills lists of its own as long as it
// can. The rests of the tiles fill further lists one after the other, cut where one is full. A list
// is for as many workers (CTAs or pairs of them) as there are KV heads, one each. The last list, if
// it is a single item, is for fewer workers that take several heads each. No device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/device_lengths.h"
#include "quire/attention/device_plan.h"

namespace quire::attention {

// Tiles of kTokenTile tokens that an item of many columns takes beside its own, in lists.
inline constexpr std::int64_t kItemTiles = kItemTokens / kTokenTile;
// Fewest tiles of an item that begins in the middle of a list.
inline constexpr std::int64_t kLeastTiles = 2;

struct ListPiece {
  std::size_t tile = 0;
  std::int64_t first = 0, tiles = 0;  // first token and number of tokens of the tile
  std::int64_t list = 0;  // index of the list; lists of one tile come before those of several
};

// The workers that compute the lists.
struct ListWorkers {
  std::int64_t workers = 0;
  std::int64_t heads_of_last = 1;  // KV heads that one of the last list's takes
};

// Returns who computes lists of `capacity` token tiles, with all that items cost. `token_tiles`:
// those of each tile.
[[nodiscard]] ListWorkers measure_lists(std::span<const std::int64_t> token_tiles,
                                        std::int64_t kv_heads, std::int64_t capacity);

// Returns the pieces of these lists, tile by tile, first to last.
[[nodiscard]] std::vector<ListPiece> cut_lists(std::span<const std::int64_t> token_tiles,
                                               std::int64_t capacity);

}  // namespace quire::attention
