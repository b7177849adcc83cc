#include "quire/attention/device_items.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_cuts.h"
#include "quire/attention/device_lists.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_tiles.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/divide.h"

namespace quire::attention {
namespace {

// An item of many columns and its place in the lists.
struct Listed {
  std::int64_t list = 0;
  std::size_t piece = 0;
  std::size_t index = 0;  // index of the item; among equals the first comes first
  DevicePlan::WorkItem item;
};

// Cuts tiles one after the other, in the order in which they are numbered.
class ItemCutter {
 public:
  ItemCutter(const AttentionShape& shape, const DeviceTiles& tiles, const DeviceCuts& cuts,
             const DevicePlanOptions& options, DevicePlan& plan)
      : kv_heads_(shape.kv_heads),
        group_(shape.heads / shape.kv_heads),
        width_(tiles.width),
        cuts_(cuts),
        options_(options),
        plan_(plan) {
    if (cuts.list_capacity > 0) {
      pieces_ = cut_lists(tiles.many_token_tiles, cuts.list_capacity);
    }
  }

  void cut(const DeviceTile& tile) {
    if (!tile.few && cuts_.list_capacity > 0) {
      cut_for_lists(tile);
    } else {
      cut_evenly(tile);
    }
  }
  // Returns the items of many columns that are in lists, in the order in which they were cut.
  [[nodiscard]] std::vector<Listed>& listed() { return listed_; }

 private:
  void cut_evenly(const DeviceTile& tile);
  void cut_for_lists(const DeviceTile& tile);
  // Returns false where no row sees anything.
  bool add_item(const DeviceTile& tile, TokenRange cut);
  void add_rows(const DeviceTile& tile, TokenRange cut);

  const std::int32_t kv_heads_, group_, width_;
  const DeviceCuts& cuts_;
  const DevicePlanOptions& options_;
  std::vector<ListPiece> pieces_;
  std::size_t next_piece_ = 0;
  bool second_ = false;  // true: cuts the second of a pair, whose first has been cut
  std::vector<Listed> listed_;
  DevicePlan& plan_;
};

void ItemCutter::cut_evenly(const DeviceTile& tile) {
  const std::int64_t grain = token_tile(options_, tile.few);
  const std::int64_t length = tile.seen.end - tile.seen.begin;
  const bool fixed = options_.range_tokens > 0;
  const auto range =
      fixed ? options_.range_tokens
            : static_cast<std::int32_t>((tile.few ? cuts_.few : cuts_.many).piece(length));
  const auto first = fixed ? range : static_cast<std::int32_t>(grain);
  for (std::int32_t begin = tile.seen.begin / first * first; begin < tile.seen.end;
       begin += range) {
    add_item(tile, {std::max(begin, tile.seen.begin), std::min(begin + range, tile.seen.end)});
  }
}

// Takes the next pieces, which are those of the tile, and of its neighbour in a pair.
void ItemCutter::cut_for_lists(const DeviceTile& tile) {
  const std::int32_t from = tile.seen.begin / kTokenTile * kTokenTile;
  std::size_t next = next_piece_;
  for (const std::size_t number = pieces_[next].tile;
       next < pieces_.size() && pieces_[next].tile == number; ++next) {
    const ListPiece& piece = pieces_[next];
    const auto begin = from + static_cast<std::int32_t>(piece.first * kTokenTile);
    const auto end = begin + static_cast<std::int32_t>(piece.tiles * kTokenTile);
    if (add_item(tile, {std::max(begin, tile.seen.begin), std::min(end, tile.seen.end)})) {
      listed_.push_back(
          {.list = piece.list, .piece = next, .index = listed_.size(), .item = plan_.many.back()});
    }
  }
  second_ = width_ == 2 && !second_;
  next_piece_ = second_ ? next_piece_ : next;
}

bool ItemCutter::add_item(const DeviceTile& tile, TokenRange cut) {
  const auto grain = static_cast<std::int32_t>(token_tile(options_, tile.few));
  DevicePlan::WorkItem item{.first_block = tile.first_block,
                            .first_token = cut.begin / grain * grain,
                            .first_seen = cut.begin,
                            .last_token = cut.end,
                            .first_row = static_cast<std::int32_t>(plan_.rows.size())};
  add_rows(tile, cut);
  item.num_rows = static_cast<std::int32_t>(plan_.rows.size()) - item.first_row;
  if (item.num_rows == 0) {
    return false;
  }
  const std::int32_t tokens = options_.block_tokens;
  plan_.counters.blocks_read +=
      std::int64_t{kv_heads_} * (base::divide_up(cut.end, tokens) - cut.begin / tokens);
  if (tile.few) {
    plan_.widest_few = std::max(plan_.widest_few, item.num_rows * group_);
  }
  (tile.few ? plan_.few : plan_.many).push_back(item);
  return true;
}

// Adds the rows of the tile that see something of `cut`. Their partials are numbered within the
// row.
void ItemCutter::add_rows(const DeviceTile& tile, TokenRange cut) {
  const Entry& entry = *tile.entry;
  for (std::int32_t i = tile.first; i < tile.first + tile.count; ++i) {
    const EntryRow& row = entry.rows[static_cast<std::size_t>(i)];
    const TokenRange range = visible_tokens(entry, row, options_.window_tokens);
    const TokenRange seen = {std::max(range.begin, cut.begin), std::min(range.end, cut.end)};
    if (seen.begin < seen.end) {
      const auto partial = plan_.partials[static_cast<std::size_t>(row.row)].count++;
      plan_.rows.push_back({.query = tile.first_query + i,
                            .visible_begin = seen.begin,
                            .visible_end = seen.end,
                            .partial = partial});
    }
  }
}

// Gives partials, which have their place within their row, their place among all partials. The
// partial of a row that has one takes no room.
void place_partials(DevicePlan& plan) {
  for (DevicePlan::PartialResults& partials : plan.partials) {
    const bool whole = partials.count == 1;
    partials.first = whole ? -1 : plan.num_partials;
    plan.num_partials += whole ? 0 : partials.count;
    plan.num_merged += whole ? 0 : 1;
  }
  for (DevicePlan::Row& row : plan.rows) {
    const auto batch_row = plan.query_rows[static_cast<std::size_t>(row.query)];
    const std::int32_t first = plan.partials[static_cast<std::size_t>(batch_row)].first;
    row.partial = first < 0 ? ~batch_row : first + row.partial;
    row.row = batch_row;
  }
}

// Sorts the longest first: what begins last should end soon. Items that read the same tokens are
// side by side, so that the cache has them.
void sort_by_length(std::vector<DevicePlan::WorkItem>& items) {
  const auto order = [](const DevicePlan::WorkItem& item) {
    return std::tuple(item.first_token - item.last_token, item.first_block, item.first_token,
                      item.first_row);
  };
  std::sort(items.begin(), items.end(),
            [&](const auto& a, const auto& b) { return order(a) < order(b); });
}

// Puts `items` in the order of their lists. Returns the list of each.
std::vector<std::int64_t> sort_by_list(std::vector<Listed>& listed,
                                       std::vector<DevicePlan::WorkItem>& items) {
  std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) {
    return std::tie(a.list, a.piece, a.index) < std::tie(b.list, b.piece, b.index);
  });
  std::vector<std::int64_t> lists(listed.size());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    lists[i] = listed[i].list;
    items[i] = listed[i].item;
  }
  return lists;
}

}  // namespace

std::vector<std::int64_t> cut_items(const AttentionShape& shape, const DeviceTiles& tiles,
                                    const DeviceCuts& cuts, const DevicePlanOptions& options,
                                    DevicePlan& plan) {
  ItemCutter cutter(shape, tiles, cuts, options, plan);
  for (const DeviceTile& tile : tiles.tiles) {
    cutter.cut(tile);
  }
  place_partials(plan);
  sort_by_length(plan.few);
  if (cuts.list_capacity > 0) {
    return sort_by_list(cutter.listed(), plan.many);
  }
  sort_by_length(plan.many);
  return {};
}

}  // namespace quire::attention
