#include "quire/attention/device_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire::attention {
namespace {

struct ListCounts {
  std::int64_t own = 0;         // full lists of one tile
  std::int64_t shared = 0;      // full lists of the others
  std::int64_t last_items = 0;  // items of the list that is not full
  std::int64_t last_tiles = 0;  // tiles of that list, with what its items cost
};

// Calls visit(ListPiece) tile by tile, first to last.
template <class Visit>
ListCounts for_each_piece(std::span<const std::int64_t> token_tiles, std::int64_t capacity,
                          const Visit& visit) {
  constexpr std::int64_t kShared = std::int64_t{1} << 32;
  const std::int64_t room = capacity - kItemTiles;
  std::int64_t own = 0, shared = 0, used = 0, items = 0;
  for (std::size_t tile = 0; tile < token_tiles.size(); ++tile) {
    std::int64_t at = 0;
    for (; token_tiles[tile] - at >= room; at += room) {
      visit(ListPiece{tile, at, room, own++});
    }
    while (at < token_tiles[tile]) {
      if (room - used < kLeastTiles) {
        ++shared;
        used = items = 0;
      }
      const std::int64_t tiles = std::min(room - used, token_tiles[tile] - at);
      visit(ListPiece{tile, at, tiles, kShared + shared});
      used += tiles + kItemTiles;
      items += 1;
      at += tiles;
    }
  }
  return {.own = own, .shared = shared, .last_items = items, .last_tiles = used};
}

}  // namespace

ListWorkers measure_lists(std::span<const std::int64_t> token_tiles, std::int64_t kv_heads,
                          std::int64_t capacity) {
  const ListCounts lists = for_each_piece(token_tiles, capacity, [](const ListPiece&) {});
  std::int64_t heads = 1;
  while (lists.last_items == 1 && kv_heads % (2 * heads) == 0 &&
         2 * heads * lists.last_tiles <= capacity) {
    heads *= 2;
  }
  return {.workers =
              (lists.own + lists.shared) * kv_heads + (lists.last_tiles > 0 ? kv_heads / heads : 0),
          .heads_of_last = heads};
}

std::vector<ListPiece> cut_lists(std::span<const std::int64_t> token_tiles, std::int64_t capacity) {
  std::vector<ListPiece> pieces;
  for_each_piece(token_tiles, capacity, [&](const ListPiece& piece) { pieces.push_back(piece); });
  return pieces;
}

}  // namespace quire::attention
