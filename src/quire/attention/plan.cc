#include "quire/attention/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/base/divide.h"

namespace quire::attention {
namespace {

constexpr int kTilesPerThread = 8;  // tiles of several strips, where there are more strips than so
constexpr int kItemsPerThread = 3;  // fewer tiles than this: pieces may be computed apart
constexpr int kSlotTokens = 64;     // about as long as a slot and its merge take

// Query rows of one entry that are stacked, and what they see together.
struct RowGroup {
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::size_t first_range = 0;  // canonical pieces with a token that some row sees; disjoint,
  std::size_t num_ranges = 0;   // ascending
};

// An entry with rows, and the level that it stands in.
struct Place {
  std::int32_t level = 0;
  std::int32_t first_row = 0;
  std::int32_t entry = 0;
};
using Level = std::span<const Place>;  // entries that share no row, by their first row

struct TileWork {
  WorkItem item;  // over all its pieces
  std::span<const TokenRange> pieces;
};

}  // namespace

// What plans are made in.
struct PlanMaker::Memory {
  std::vector<RowGroup> groups;          // entry after entry
  std::vector<std::size_t> first_group;  // [entries + 1]
  std::vector<TokenRange> ranges;        // of all groups
  std::vector<TokenRange> seen, cells;   // of the group in hand
  std::vector<std::int32_t> next_level;  // [rows]
  std::vector<Place> places;             // by level
  std::vector<Level> levels;             // of them
  std::vector<TileWork> tiles;           // of the entries in hand
  std::vector<std::int32_t> last_chain;  // [states] of the last wave that updates the state, -1:
                                         // none; empty: no chain may come after another
};

namespace {

class Planner {
 public:
  struct Settings {
    std::int32_t block_tokens = 0;
    std::int32_t window_tokens = 0;
    int threads = 0;
  };

  Planner(const AttentionShape& shape, std::span<const Entry> entries, const Settings& settings,
          PlanMaker::Memory& memory, Plan& plan)
      : shape_(shape),
        entries_(entries),
        block_tokens_(settings.block_tokens),
        window_tokens_(settings.window_tokens),
        threads_(settings.threads),
        group_(shape.heads / shape.kv_heads),
        tile_heads_(std::min(group_, kStripRows)),
        strip_rows_(kStripRows / tile_heads_),
        memory_(memory),
        plan_(plan) {}

  void make() {
    memory_.groups.clear();
    memory_.first_group.assign(1, 0);
    memory_.ranges.clear();
    memory_.last_chain.clear();
    for (const Entry& entry : entries_) {
      add_queries(entry);
    }
    place_entries();
    const std::span<const Level> levels = memory_.levels;
    for (std::size_t i = 0; i < levels.size();) {
      std::size_t end = i + 1;
      if (has_few_tiles(levels[i])) {
        while (end < levels.size() && has_few_tiles(levels[end])) {
          ++end;
        }
        add_few(levels.subspan(i, end - i));
      } else {
        while (end < levels.size() && continues(levels[end - 1], levels[end])) {
          ++end;
        }
        add_chains(levels.subspan(i, end - i));
      }
      i = end;
    }
  }

 private:
  void add_queries(const Entry& entry) {
    plan_.first_query.push_back(static_cast<std::int32_t>(plan_.query_positions.size()));
    std::int32_t last = -1;
    for (const EntryRow& row : entry.rows) {
      QUIRE_CHECK(row.row > last, "rows of an entry must ascend");
      last = row.row;
      plan_.query_positions.push_back(row.query_position);
    }
    plan_.num_rows = std::max(plan_.num_rows, last + 1);
    plan_.counters.entries += 1;
    plan_.counters.rows += static_cast<std::int64_t>(entry.rows.size());
    add_groups(entry);
    memory_.first_group.push_back(memory_.groups.size());
  }

  // Entries of one level share no row, and a row's entries stand in levels in list order. Those
  // without rows are left out.
  void place_entries() {
    std::vector<Place>& places = memory_.places;
    places.clear();
    memory_.next_level.assign(static_cast<std::size_t>(plan_.num_rows), 0);
    const auto next_level = [&](const EntryRow& row) -> std::int32_t& {
      return memory_.next_level[static_cast<std::size_t>(row.row)];
    };
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::span<const EntryRow> rows = entries_[i].rows;
      if (rows.empty()) {
        continue;
      }
      std::int32_t level = 0;
      for (const EntryRow& row : rows) {
        level = std::max(level, next_level(row));
      }
      for (const EntryRow& row : rows) {
        next_level(row) = level + 1;
      }
      places.push_back({level, rows.front().row, static_cast<std::int32_t>(i)});
    }
    std::ranges::sort(places, {},
                      [](const Place& place) { return std::pair(place.level, place.first_row); });
    memory_.levels.clear();
    for (auto first = places.begin(); first != places.end();) {
      const auto end = std::find_if(
          first, places.end(), [&](const Place& place) { return place.level != first->level; });
      memory_.levels.emplace_back(first, end);
      first = end;
    }
  }

  void add_groups(const Entry& entry) {
    const auto num_rows = static_cast<std::int32_t>(entry.rows.size());
    if (num_rows == 0) {
      return;
    }
    const std::int32_t rows =
        base::divide_up(num_rows, base::divide_up(num_rows, tile_rows(num_rows)));  // evenly
    for (std::int32_t first = 0; first < num_rows; first += rows) {
      RowGroup group{.first_row = first,
                     .rows = std::min(rows, num_rows - first),
                     .first_range = memory_.ranges.size()};
      find_seen(entry, group);
      if (memory_.seen.empty()) {
        continue;
      }
      append_cells(kPieceTokens, memory_.ranges);
      group.num_ranges = memory_.ranges.size() - group.first_range;
      memory_.groups.push_back(group);
      memory_.cells.clear();
      append_cells(block_tokens_, memory_.cells);
      visit_blocks(entry);
    }
  }

  // Query rows of a tile of an entry that has so many. A tile of several strips brings its KV to
  // the near caches once for all of them, as long as there are tiles enough for the threads to
  // share.
  [[nodiscard]] std::int32_t tile_rows(std::int32_t num_rows) const {
    const std::int32_t strips = base::divide_up(num_rows, strip_rows_) * shape_.kv_heads *
                                base::divide_up(group_, tile_heads_);
    return strip_rows_ * std::clamp(strips / (kTilesPerThread * threads_), 1, kMaxStrips);
  }

  // What each row of the group sees, without empty ranges, by first token.
  void find_seen(const Entry& entry, const RowGroup& group) {
    std::vector<TokenRange>& seen = memory_.seen;
    seen.clear();
    for (const EntryRow& row : entry.rows.subspan(static_cast<std::size_t>(group.first_row),
                                                  static_cast<std::size_t>(group.rows))) {
      const TokenRange range = visible_tokens(entry, row, window_tokens_);
      if (range.begin < range.end) {
        seen.push_back(range);
      }
    }
    std::ranges::sort(seen, {}, &TokenRange::begin);
  }

  // Union of what is seen, counted in cells of `tokens` tokens, behind what `cells` holds.
  void append_cells(std::int32_t tokens, std::vector<TokenRange>& cells) const {
    const std::size_t before = cells.size();
    for (const TokenRange range : memory_.seen) {
      const TokenRange cell = {range.begin / tokens, base::divide_up(range.end, tokens)};
      if (cells.size() == before || cells.back().end < cell.begin) {
        cells.push_back(cell);
      } else {
        cells.back().end = std::max(cells.back().end, cell.end);
      }
    }
  }

  void visit_blocks(const Entry& entry) {
    const std::int32_t tiles = shape_.kv_heads * base::divide_up(group_, tile_heads_);
    for (const TokenRange range : memory_.cells) {
      QUIRE_CHECK(static_cast<std::size_t>(range.end) <= entry.blocks.size(),
                  "an entry has fewer blocks than its tokens need");
      plan_.counters.blocks_read += std::int64_t{tiles} * (range.end - range.begin);
      std::int32_t least = 0;
      for (const std::int32_t id :
           entry.blocks.subspan(static_cast<std::size_t>(range.begin),
                                static_cast<std::size_t>(range.end - range.begin))) {
        least = std::min(least, id);
        plan_.max_block = std::max(plan_.max_block, id);
      }
      QUIRE_CHECK(least >= 0, "a visible token lies in a freed block");
    }
  }

  [[nodiscard]] std::span<const RowGroup> groups_of(std::int32_t entry) const {
    const auto i = static_cast<std::size_t>(entry);
    return std::span(memory_.groups)
        .subspan(memory_.first_group[i], memory_.first_group[i + 1] - memory_.first_group[i]);
  }

  [[nodiscard]] std::span<const TokenRange> pieces_of(const RowGroup& group) const {
    return std::span(memory_.ranges).subspan(group.first_range, group.num_ranges);
  }

  // Behind those that are in hand.
  void take_tiles(std::int32_t entry) {
    for (std::int32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      for (const RowGroup& group : groups_of(entry)) {
        const std::span<const TokenRange> pieces = pieces_of(group);
        for (std::int32_t head = 0; head < group_; head += tile_heads_) {
          memory_.tiles.push_back({{.entry = entry,
                                    .kv_head = kv_head,
                                    .first_row = group.first_row,
                                    .rows = group.rows,
                                    .first_head = kv_head * group_ + head,
                                    .heads = std::min(tile_heads_, group_ - head),
                                    .first_piece = pieces.front().begin,
                                    .last_piece = pieces.back().end},
                                   pieces});
        }
      }
    }
  }

  [[nodiscard]] std::int64_t tiles_of(Level level) const {
    std::int64_t groups = 0;
    for (const Place& place : level) {
      groups += std::ssize(groups_of(place.entry));
    }
    return groups * shape_.kv_heads * base::divide_up(group_, tile_heads_);
  }

  [[nodiscard]] bool has_few_tiles(Level level) const {
    return threads_ > 1 && tiles_of(level) < std::int64_t{kItemsPerThread} * threads_;
  }

  [[nodiscard]] std::span<const EntryRow> rows_of(std::int32_t entry) const {
    return entries_[static_cast<std::size_t>(entry)].rows;
  }

  // The entry of `level` with the rows of the one at `place`, else -1.
  [[nodiscard]] std::int32_t find_same(Level level, const Place& place) const {
    const auto found = std::lower_bound(
        level.begin(), level.end(), place.first_row,
        [](const Place& other, std::int32_t row) { return other.first_row < row; });
    const bool same =
        found != level.end() && std::ranges::equal(rows_of(found->entry), rows_of(place.entry), {},
                                                   &EntryRow::row, &EntryRow::row);
    return same ? found->entry : -1;
  }

  // Every entry of `next` has the rows of one entry of `level`.
  [[nodiscard]] bool continues(Level level, Level next) const {
    return std::ranges::all_of(next,
                               [&](const Place& place) { return find_same(level, place) >= 0; });
  }

  // An item of its own, or the next of the last chain.
  void add_item(const WorkItem& item, bool begins) {
    if (begins) {
      plan_.chains.push_back({.first_item = static_cast<std::int32_t>(plan_.items.size())});
    }
    plan_.items.push_back(item);
    ++plan_.chains.back().num_items;
  }

  void add_wave(std::size_t first_chain, bool split) {
    if (first_chain < plan_.chains.size()) {
      plan_.waves.push_back(
          {.first_chain = static_cast<std::int32_t>(first_chain),
           .num_chains = static_cast<std::int32_t>(plan_.chains.size() - first_chain),
           .split = split});
    }
  }

  // The levels continue each other: a tile's items over them are one chain.
  void add_chains(std::span<const Level> levels) {
    const std::size_t first_chain = plan_.chains.size();
    for (const Place& first : levels.front()) {
      memory_.tiles.clear();
      for (const Level level : levels) {
        const std::int32_t entry = find_same(level, first);
        if (entry >= 0) {
          take_tiles(entry);
        }
      }
      std::ranges::sort(memory_.tiles, {}, [](const TileWork& tile) {
        const WorkItem& item = tile.item;  // entries stand in levels in list order
        return std::tuple(item.kv_head, item.first_row, item.first_head, item.entry);
      });
      const WorkItem* last = nullptr;
      for (const TileWork& tile : memory_.tiles) {
        add_item(tile.item, last == nullptr || !same_rows_and_heads(*last, tile.item));
        last = &tile.item;
      }
    }
    if (first_chain == plan_.chains.size()) {
      return;  // their rows see nothing
    }
    if (wait_for_one(std::span(plan_.chains).subspan(first_chain))) {
      plan_.waves.back().num_chains += static_cast<std::int32_t>(plan_.chains.size() - first_chain);
    } else {
      const std::int32_t states =
          plan_.num_rows * shape_.kv_heads * base::divide_up(group_, tile_heads_);
      memory_.last_chain.assign(static_cast<std::size_t>(states), -1);
      add_wave(first_chain, false);
    }
    for (std::size_t i = first_chain; i < plan_.chains.size(); ++i) {
      for_each_state(plan_.chains[i], [&](std::size_t state) {
        memory_.last_chain[state] = static_cast<std::int32_t>(i);
      });
    }
  }

  // Calls fn(state) for every softmax state that the chain updates: of a row and its tile's heads.
  template <class Fn>
  void for_each_state(const Plan::Chain& chain, Fn fn) const {
    const WorkItem& item = plan_.items[static_cast<std::size_t>(chain.first_item)];
    const std::int32_t tiles = base::divide_up(group_, tile_heads_);  // of a KV head
    const std::int32_t tile =
        item.kv_head * tiles + (item.first_head - item.kv_head * group_) / tile_heads_;
    const std::int32_t per_row = shape_.kv_heads * tiles;
    for (const EntryRow& row : rows_of(item.entry)
                                   .subspan(static_cast<std::size_t>(item.first_row),
                                            static_cast<std::size_t>(item.rows))) {
      const auto first = static_cast<std::size_t>(row.row) * static_cast<std::size_t>(per_row);
      fn(first + static_cast<std::size_t>(tile));
    }
  }

  // If each of `added` updates states of at most one chain of the last wave, it comes after that
  // one, and they are sorted by it: what requests have of their own fills the time in which the
  // last of what they share is computed. False, and nothing changed, if one would have to wait for
  // more.
  bool wait_for_one(std::span<Plan::Chain> added) const {
    bool one = !memory_.last_chain.empty();
    for (std::size_t i = 0; one && i < added.size(); ++i) {
      for_each_state(added[i], [&](std::size_t state) {
        const std::int32_t last = memory_.last_chain[state];
        one = one && (last < 0 || added[i].after < 0 || last == added[i].after);
        added[i].after = std::max(added[i].after, last);
      });
    }
    if (!one) {
      for (Plan::Chain& chain : added) {
        chain.after = -1;
      }
      return false;
    }
    std::ranges::sort(added, {}, [](const Plan::Chain& chain) {
      return std::pair(chain.after, chain.first_item);
    });
    return true;
  }

  // Of entries with the same rows.
  static bool same_rows_and_heads(const WorkItem& a, const WorkItem& b) {
    return a.first_row == b.first_row && a.first_head == b.first_head;
  }

  [[nodiscard]] bool has_one_piece_per_tile(Level level) const {
    return std::ranges::all_of(level, [&](const Place& place) {
      return std::ranges::all_of(groups_of(place.entry), [&](const RowGroup& group) {
        return pieces_of(group).back().end - pieces_of(group).front().begin == 1;
      });
    });
  }

  // Of levels that continue each other: what the busiest thread has to do with a chain for each
  // tile is less than its share of all pieces with what each costs apart, a slot and a merge.
  [[nodiscard]] bool chains_are_faster(std::span<const Level> levels) const {
    std::int64_t tokens = 0;
    std::int64_t pieces = 0;
    for (const Level level : levels) {
      for (const Place& place : level) {
        const std::int32_t of_entry = entries_[static_cast<std::size_t>(place.entry)].num_tokens;
        tokens += of_entry;
        pieces += base::divide_up(of_entry, kPieceTokens);
      }
    }
    const std::int64_t tiles = tiles_of(levels.front());
    const std::int64_t chains_of_busiest = (tiles + threads_ - 1) / threads_;
    return chains_of_busiest * threads_ * tokens <= tiles * (tokens + kSlotTokens * pieces);
  }

  // Levels with few tiles each: all their pieces run side by side, unless there is nothing to cut
  // or nothing gained by it.
  void add_few(std::span<const Level> levels) {
    const bool one_chain = std::ranges::adjacent_find(levels, [&](Level a, Level b) {
                             return !continues(a, b);
                           }) == levels.end();
    if (one_chain && (chains_are_faster(levels) ||
                      (levels.size() == 1 && has_one_piece_per_tile(levels.front())))) {
      add_chains(levels);
      return;
    }
    const std::size_t first_chain = plan_.chains.size();
    std::int32_t slots = 0;
    memory_.tiles.clear();
    for (const Level level : levels) {
      for (const Place& place : level) {
        take_tiles(place.entry);
      }
    }
    for (const TileWork& tile : memory_.tiles) {
      add_pieces(tile, slots);
    }
    plan_.num_slots = std::max(plan_.num_slots, slots);
    memory_.last_chain.clear();
    add_wave(first_chain, true);
  }

  void add_pieces(const TileWork& tile, std::int32_t& slots) {
    for (const TokenRange range : tile.pieces) {
      for (std::int32_t piece = range.begin; piece < range.end; ++piece) {
        WorkItem item = tile.item;
        item.first_piece = piece;
        item.last_piece = piece + 1;
        item.slot = slots;
        slots += item.rows * item.heads;
        add_item(item, true);
      }
    }
  }

  const AttentionShape& shape_;
  std::span<const Entry> entries_;
  std::int32_t block_tokens_;
  std::int32_t window_tokens_;
  int threads_;
  std::int32_t group_;       // query heads per KV head
  std::int32_t tile_heads_;  // of a tile
  std::int32_t strip_rows_;  // query rows of a strip
  PlanMaker::Memory& memory_;
  Plan& plan_;
};

}  // namespace

void Plan::clear() {
  items.clear();
  chains.clear();
  waves.clear();
  num_slots = 0;
  query_positions.clear();
  first_query.clear();
  num_rows = 0;
  max_block = -1;
  counters = {};
}

TokenRange visible_tokens(const Entry& entry, const EntryRow& row, std::int32_t window_tokens) {
  const std::int32_t end = std::min(row.visible_end, entry.num_tokens);
  const std::int64_t begin =
      window_tokens > 0
          ? std::max<std::int64_t>(entry.first_token,
                                   std::int64_t{row.query_position} - window_tokens + 1)
          : entry.first_token;
  return begin < end ? TokenRange{static_cast<std::int32_t>(begin), end} : TokenRange{};
}

PlanMaker::PlanMaker() : memory_(std::make_unique<Memory>()) {}
PlanMaker::~PlanMaker() = default;

void PlanMaker::make(const AttentionShape& shape, std::span<const Entry> entries,
                     std::int32_t block_tokens, std::int32_t window_tokens, int threads,
                     Plan& plan) {
  QUIRE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
              "heads must be a multiple of kv_heads");
  QUIRE_CHECK(block_tokens >= 1 && block_tokens <= kPieceTokens, "block_tokens outside 1..256");
  plan.clear();
  Planner(shape, entries, {block_tokens, window_tokens, threads}, *memory_, plan).make();
}

Plan make_plan(const AttentionShape& shape, std::span<const Entry> entries,
               std::int32_t block_tokens, std::int32_t window_tokens, int threads) {
  Plan plan;
  PlanMaker().make(shape, entries, block_tokens, window_tokens, threads, plan);
  return plan;
}

}  // namespace quire::attention
