#include "quire/attention/device_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/attention/device_cuts.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/base/divide.h"

namespace quire::attention {
namespace {

constexpr std::int32_t kFewStep = 32;  // shortest range of an item of few columns
// As kItemTokens, of an item of few where others are of many: the next item is on its way
// meanwhile.
constexpr std::int64_t kFewItemTokens = 64;
// Microseconds of a multiprocessor for kStepTokens tokens of an item, where one kernel computes
// both families: products for many columns, memory for few (H200, head size 128; their ratio
// counts).
constexpr double kManyStepUs = 1.9, kFewStepUs = 0.85;
constexpr std::size_t kMostListedTiles = 256;  // more even out by themselves, and would cost time

class DevicePlanner {
 public:
  DevicePlanner(const AttentionShape& shape, std::span<const Entry> entries, std::int32_t num_rows,
                const DevicePlanOptions& options, DevicePlan memory)
      : entries_(entries),
        options_(options),
        group_(shape.heads / shape.kv_heads),
        kv_heads_(shape.kv_heads),
        lists_(shape.kv_heads),
        plan_(std::move(memory)) {
    plan_.clear();
    plan_.like_many = options.one_kernel && options.range_tokens > 0;
    plan_.parts.resize(static_cast<std::size_t>(num_rows));
    tiles_.reserve(entries.size());
  }

  DevicePlan make() {
    for (const Entry& entry : entries_) {
      add(entry);
    }
    find_pairs();
    choose_cuts();
    if (list_capacity_ > 0) {
      find_pieces();
    }
    for (const Tile& tile : tiles_) {
      cut(tile);
    }
    place_parts();
    sort_items();
    if (options_.one_kernel) {
      choose_crew();
      fill_queues();
    }
    return std::move(plan_);
  }

 private:
  void sort_items() {
    // Longest first: what begins last should end soon. What reads the same tokens side by side, so
    // that the cache has them.
    const auto order = [](const DevicePlan::Item& item) {
      return std::tuple(item.first_token - item.last_token, item.first_block, item.first_token,
                        item.first_row);
    };
    for (auto* items : {&plan_.few, &plan_.many}) {
      if (items != &plan_.many || list_capacity_ == 0) {
        std::sort(items->begin(), items->end(),
                  [&](const auto& a, const auto& b) { return order(a) < order(b); });
      }
    }
    if (list_capacity_ > 0) {
      sort_by_lists();
    }
  }

  void sort_by_lists() {
    struct Listed {
      std::pair<std::int64_t, std::size_t> list;
      std::size_t index = 0;  // of equals the first comes first
      DevicePlan::Item item;
    };
    std::vector<Listed> listed;
    listed.reserve(list_of_.size());
    for (std::size_t i = 0; i < list_of_.size(); ++i) {
      listed.push_back({list_of_[i], i, plan_.many[i]});
    }
    std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) {
      return std::tie(a.list, a.index) < std::tie(b.list, b.index);
    });
    for (std::size_t i = 0; i < listed.size(); ++i) {
      list_of_[i] = listed[i].list;
      plan_.many[i] = listed[i].item;
    }
  }

  // What rows [first, first + count) of an entry see together.
  struct Tile {
    const Entry* entry = nullptr;
    std::int32_t first_block = 0, first_query = 0;  // of the entry
    std::int32_t first = 0, count = 0;
    bool few = false;
    TokenRange seen;
  };

  // Where the families differ in the last bits and ranges are fixed, one of them does everything.
  [[nodiscard]] bool is_few(const Entry& entry, std::int64_t rows) const {
    if (options_.one_kernel) {
      return rows * group_ <= (plan_.like_many ? kFewColumnsOfOneKernel : kFewColumns);
    }
    return options_.range_tokens == 0 && std::ssize(entry.rows) * group_ <= kFewColumns;
  }

  [[nodiscard]] std::int64_t step_of(bool few) const {
    return few && !options_.one_kernel ? kFewStep : kStepTokens;
  }

  void add(const Entry& entry) {
    QUIRE_CHECK(options_.window_tokens >= 0 && entry.num_tokens >= 0, "an entry without tokens");
    const auto first_query = static_cast<std::int32_t>(plan_.query_rows.size());
    std::int32_t before = -1;
    for (const EntryRow& row : entry.rows) {
      QUIRE_CHECK(row.row > before && static_cast<std::size_t>(row.row) < plan_.parts.size(),
                  "rows of an entry are ascending and in the batch");
      before = row.row;
      plan_.query_rows.push_back(row.row);
      plan_.query_positions.push_back(row.query_position);
    }
    const auto first_block = static_cast<std::int32_t>(plan_.blocks.size());
    plan_.blocks.insert(plan_.blocks.end(), entry.blocks.begin(), entry.blocks.end());
    plan_.counters.entries += 1;
    plan_.counters.rows += std::ssize(entry.rows);
    const auto num_rows = static_cast<std::int32_t>(entry.rows.size());
    const std::int32_t height = std::max(1, kManyColumns / group_);
    for (std::int32_t first = 0; first < num_rows; first += height) {
      Tile tile = tile_of(entry, first, std::min(height, num_rows - first));
      if (tile.seen.begin >= tile.seen.end) {
        continue;
      }
      tile.first_block = first_block;
      tile.first_query = first_query;
      (tile.few ? few_ : many_).add(tile.seen.end - tile.seen.begin, kv_heads_);
      tiles_.push_back(tile);
    }
  }

  // Tiles of many columns are pairs where each has a neighbour that sees the same. (In a window
  // some rows of a piece may see something in one tile and none in the other.) Where all tiles are
  // of many columns, prefill, few have such a neighbour, and the kernel for that knows no pairs.
  void find_pairs() {
    constexpr int kLeastWorkers = 4;
    const bool mixed = few_.total() > 0 && many_.total() > 0;
    width_ = options_.one_kernel && options_.window_tokens == 0 && mixed &&
                     options_.many_workers >= kLeastWorkers
                 ? 2
                 : 1;
    const Tile* left = nullptr;  // without its neighbour so far
    for (const Tile& tile : tiles_) {
      if (tile.few) {
        continue;
      }
      if (left != nullptr && (left->entry != tile.entry || left->seen.end != tile.seen.end)) {
        width_ = 1;
      }
      left = left == nullptr ? &tile : nullptr;
    }
    if (left != nullptr) {
      width_ = 1;
    }
    bool second = false;
    for (const Tile& tile : tiles_) {
      if (tile.few) {
        continue;
      }
      if (!second) {
        lists_.add(base::divide_up(tile.seen.end, kStepTokens) - tile.seen.begin / kStepTokens);
      }
      second = width_ == 2 && !second;
    }
  }

  // How tiles of the families are cut into items, and who computes them.
  void choose_cuts() {
    const double many = kManyStepUs * static_cast<double>(many_.total());
    const double few = kFewStepUs * static_cast<double>(few_.total());
    many_share_ = many > 0 ? static_cast<float>(many / (many + few)) : 0;
    if (!options_.one_kernel || many == 0 || few == 0) {
      const std::int64_t workers =
          options_.one_kernel ? 2 * options_.many_workers : options_.few_workers;
      few_cut_ = few_.best(step_of(true), workers).first;
      many_cut_ = many_.best(step_of(false), options_.many_workers).first;
      if (options_.one_kernel && many == 0 && few > 0) {
        prefer_fewer();
      }
      return;
    }
    // Shares near the estimated one may suit the numbers of items better. From there outwards,
    // since most of the others can be seen not to.
    const int all = options_.many_workers;
    const int middle = std::clamp(
        static_cast<int>(std::lround(many_share_ * static_cast<float>(all))), 1, all - 1);
    const int step = std::max(1, all / (64 * width_)) * width_;
    const int lowest = std::max(1, (middle - all / 3) / width_) * width_;
    const int highest = std::min(all - 1, middle + all / 8);
    const int start = lowest + (middle - lowest) / step * step;
    Share chosen;
    for (int below = start, above = start + step; below >= lowest || above <= highest;
         below -= step, above += step) {
      if (below >= lowest) {
        try_share(below, chosen);
      }
      if (above <= highest) {
        try_share(above, chosen);
      }
    }
    many_share_ = static_cast<float>(chosen.many_workers) / static_cast<float>(all);
    if (options_.range_tokens == 0 && lists_.num_tiles() <= kMostListedTiles) {
      try_lists((many + few) / all, chosen.end);
    }
  }

  // Takes lists if these end so much earlier than the `end` of equal pieces that it is no error of
  // the estimate. They end at `least` at the earliest.
  void try_lists(double least, double end) {
    constexpr double kGain = 0.97;
    end *= kGain;
    const auto us = [](std::int64_t capacity) {
      return kManyStepUs * static_cast<double>(capacity);
    };
    auto capacity = std::max(static_cast<std::int64_t>(least / kManyStepUs / kStepTokens),
                             kItemSteps + kLeastSteps);
    for (; us(capacity) * kStepTokens < end; ++capacity) {
      lists_.cut(capacity, [](const Lists::Piece&) {});
      const std::int64_t for_few = 2 * (options_.many_workers - width_ * lists_.workers());
      if (for_few <= 0) {
        continue;
      }
      const auto [few_cut, few_end] = few_.best(kStepTokens, for_few, kFewItemTokens);
      const double all_end = std::max(us(capacity) * kStepTokens, 2 * few_end * kFewStepUs);
      if (all_end < end) {
        end = all_end;
        list_capacity_ = capacity;
        few_cut_ = few_cut;
      }
    }
  }

  void find_pieces() {
    lists_.cut(list_capacity_, [&](const Lists::Piece& piece) { pieces_.push_back(piece); });
  }

  // Two items of few on a multiprocessor have half its speed each. Where all run at once and half
  // as many end no later, those leave fewer parts.
  void prefer_fewer() {
    const std::int64_t all = options_.many_workers;
    const Cut alone{static_cast<double>(few_.total()) / static_cast<double>(all), false,
                    kStepTokens};
    const Lengths::Items items = few_.items(alone);
    if (items.count <= all && items.longest <= 2 * few_.items(few_cut_).longest) {
      few_cut_ = alone;
    }
  }

  // Workers for the family of many columns and when all are done.
  struct Share {
    int many_workers = 0;
    double end = std::numeric_limits<double>::infinity();
  };

  // Takes the share if it ends earlier, or as early with fewer workers.
  void try_share(int some, Share& chosen) {
    // Two items of few run side by side at half the speed each.
    const std::int64_t for_few = std::int64_t{2} * (options_.many_workers - some);
    const auto end_of = [](double many, double few) {
      return std::max(many * kManyStepUs, 2 * few * kFewStepUs);
    };
    if (end_of(many_.least(some, kItemTokens), few_.least(for_few, kFewItemTokens)) > chosen.end) {
      return;
    }
    const auto [many_cut, many_end] = many_.best(kStepTokens, some);
    if (end_of(many_end, few_.least(for_few, kFewItemTokens)) > chosen.end) {
      return;
    }
    const auto [few_cut, few_end] = few_.best(kStepTokens, for_few, kFewItemTokens);
    const double end = end_of(many_end, few_end);
    if (std::pair(end, some) < std::pair(chosen.end, chosen.many_workers)) {
      chosen = {some, end};
      many_cut_ = many_cut;
      few_cut_ = few_cut;
    }
  }

  // The next pieces are those of the tile, and of its neighbour in a pair.
  void cut_for_lists(const Tile& tile) {
    const std::int32_t from = tile.seen.begin / kStepTokens * kStepTokens;
    std::size_t next = next_piece_;
    for (const std::size_t number = pieces_[next].tile;
         next < pieces_.size() && pieces_[next].tile == number; ++next) {
      const Lists::Piece& piece = pieces_[next];
      const auto begin = from + static_cast<std::int32_t>(piece.first * kStepTokens);
      const auto end = begin + static_cast<std::int32_t>(piece.steps * kStepTokens);
      if (add_item(tile, {std::max(begin, tile.seen.begin), std::min(end, tile.seen.end)})) {
        list_of_.emplace_back(piece.list, next);
      }
    }
    second_ = width_ == 2 && !second_;
    next_piece_ = second_ ? next_piece_ : next;
  }

  void cut(const Tile& tile) {
    if (!tile.few && list_capacity_ > 0) {
      cut_for_lists(tile);
      return;
    }
    const std::int64_t step = step_of(tile.few);
    const std::int64_t length = tile.seen.end - tile.seen.begin;
    const bool fixed = options_.range_tokens > 0;
    const auto range =
        fixed ? options_.range_tokens
              : static_cast<std::int32_t>((tile.few ? few_cut_ : many_cut_).piece(length));
    const auto unit = fixed ? range : static_cast<std::int32_t>(step);
    for (std::int32_t begin = tile.seen.begin / unit * unit; begin < tile.seen.end;
         begin += range) {
      add_item(tile, {std::max(begin, tile.seen.begin), std::min(begin + range, tile.seen.end)});
    }
  }

  [[nodiscard]] Tile tile_of(const Entry& entry, std::int32_t first, std::int32_t count) const {
    Tile tile{.entry = &entry,
              .first = first,
              .count = count,
              .few = is_few(entry, count),
              .seen = {std::numeric_limits<int>::max(), 0}};
    for (const EntryRow& row :
         entry.rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))) {
      const TokenRange range = visible_tokens(entry, row, options_.window_tokens);
      if (range.begin < range.end) {
        tile.seen = {std::min(tile.seen.begin, range.begin), std::max(tile.seen.end, range.end)};
      }
    }
    return tile;
  }

  // False where no row sees anything.
  bool add_item(const Tile& tile, TokenRange cut) {
    const Entry& entry = *tile.entry;
    const auto step = static_cast<std::int32_t>(step_of(tile.few));
    DevicePlan::Item item{.first_block = tile.first_block,
                          .first_token = cut.begin / step * step,
                          .first_seen = cut.begin,
                          .last_token = cut.end,
                          .first_row = static_cast<std::int32_t>(plan_.rows.size())};
    for (std::int32_t i = tile.first; i < tile.first + tile.count; ++i) {
      const EntryRow& row = entry.rows[static_cast<std::size_t>(i)];
      const TokenRange range = visible_tokens(entry, row, options_.window_tokens);
      const TokenRange seen = {std::max(range.begin, cut.begin), std::min(range.end, cut.end)};
      if (seen.begin < seen.end) {
        const auto part = plan_.parts[static_cast<std::size_t>(row.row)].count++;
        plan_.rows.push_back({.query = tile.first_query + i,
                              .visible_begin = seen.begin,
                              .visible_end = seen.end,
                              .part = part});
      }
    }
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

  // Parts got their place within their row; now each row gets its own, where it has several.
  void place_parts() {
    for (DevicePlan::Parts& parts : plan_.parts) {
      const bool whole = parts.count == 1;
      parts.first = whole ? -1 : plan_.num_parts;
      plan_.num_parts += whole ? 0 : parts.count;
      plan_.num_merged += whole ? 0 : 1;
    }
    for (DevicePlan::Row& row : plan_.rows) {
      const auto batch_row = plan_.query_rows[static_cast<std::size_t>(row.query)];
      const std::int32_t first = plan_.parts[static_cast<std::size_t>(batch_row)].first;
      row.part = first < 0 ? ~batch_row : first + row.part;
      row.row = batch_row;
    }
  }

  // CTAs by what the families cost.
  void choose_crew() {
    const auto units = [&](const std::vector<DevicePlan::Item>& items) {
      return std::ssize(items) * kv_heads_;
    };
    const std::int64_t all = options_.many_workers, many = units(plan_.many),
                       few = units(plan_.few);
    const std::int64_t wanted =
        std::lround(many_share_ * static_cast<float>(all)) / width_ * width_;
    const std::int64_t for_many =
        few == 0    ? std::min(many, all)
        : many == 0 ? 0
                    : std::min(many, std::clamp<std::int64_t>(wanted, width_,
                                                              std::max<std::int64_t>(all - 1, 1)));
    plan_.crew = {.few_workers = static_cast<std::int32_t>(std::min(few, all - for_many)),
                  .many_workers = static_cast<std::int32_t>(for_many),
                  .pairs = width_ - 1};
  }

  void fill_queues() {
    plan_.queues.assign(static_cast<std::size_t>(options_.many_workers + 1) / 2 * 4, {});
    DevicePlan::Crew& crew = plan_.crew;
    if (list_capacity_ > 0) {
      crew.many_workers = static_cast<std::int32_t>(width_ * lists_.workers());
      crew.few_workers = options_.many_workers - crew.many_workers;
      queue_lists();
    } else {
      const std::int32_t workers = crew.many_workers / width_;
      const auto items = static_cast<std::int32_t>(plan_.many.size()) / width_;
      for (std::int32_t worker = 0; worker < workers; ++worker) {
        queue_many(worker, rounds_of(worker, workers, items));
      }
    }
    const std::int32_t halves = 2 * crew.few_workers;
    for (std::int32_t half = 0; half < halves; ++half) {
      const std::int64_t cta = crew.many_workers + half % crew.few_workers;
      plan_.queues[static_cast<std::size_t>(2 * cta + half / crew.few_workers)] =
          rounds_of(half, halves, static_cast<std::int32_t>(plan_.few.size()));
    }
    introduce_items();
    if (width_ == 2 && crew.many_workers <= 2 * crew.few_workers) {
      spread_kinds();
    }
  }

  // CTAs that are neighbours start on neighbouring multiprocessors, which share a road to the
  // second-level cache: where CTAs of few columns are many, some roads would be full and others
  // empty.
  void spread_kinds() {
    const DevicePlan::Crew& crew = plan_.crew;
    const std::int32_t of_many = crew.many_workers / 2;
    const std::int32_t pairs = of_many + crew.few_workers / 2;
    const std::vector<DevicePlan::Queue> from = plan_.queues;
    for (std::int32_t pair = 0; pair < pairs; ++pair) {
      const std::int32_t before = pair * of_many / pairs, with = (pair + 1) * of_many / pairs;
      const std::int32_t taken = with > before ? before : of_many + pair - before;
      std::copy_n(from.begin() + std::ptrdiff_t{4} * taken, 4,
                  plan_.queues.begin() + std::ptrdiff_t{4} * pair);
    }
  }

  // What a queue says beside its units.
  void introduce_items() {
    using Kind = DevicePlan::Queue::Kind;
    const DevicePlan::Crew& crew = plan_.crew;
    const std::int32_t ctas = crew.many_workers + crew.few_workers;
    for (std::int32_t half = 0; half < 2 * ctas; ++half) {
      const std::int32_t cta = half / 2;
      const bool many = cta < crew.many_workers;
      DevicePlan::Queue& queue = plan_.queues[static_cast<std::size_t>(half)];
      queue.kind = !many ? Kind::kFew : width_ == 2 ? Kind::kPair : Kind::kMany;
      queue.workers = many ? crew.many_workers : crew.few_workers;
      if (queue.count > 0) {
        const std::int32_t number = queue.first / kv_heads_;
        const std::int32_t at = many ? number * width_ + cta % width_ : number;
        queue.item = (many ? plan_.many : plan_.few)[static_cast<std::size_t>(at)];
      }
    }
  }

  // Of a CTA, or of both of a pair.
  void queue_many(std::int32_t worker, const DevicePlan::Queue& queue) {
    std::fill_n(plan_.queues.begin() + std::ptrdiff_t{2} * width_ * worker, 2 * width_, queue);
  }

  // A unit of each round, from alternating ends of it, since items are sorted by length.
  [[nodiscard]] DevicePlan::Queue rounds_of(std::int32_t worker, std::int32_t workers,
                                            std::int32_t items) const {
    const std::int32_t units = items * kv_heads_;
    const std::int32_t whole = units / workers, left = units % workers, back = workers - 1 - worker;
    return {.first = worker,
            .steps = {2 * back + 1, 2 * worker + 1},
            .count = whole + ((whole % 2 == 0 ? worker : back) < left ? 1 : 0)};
  }

  void queue_lists() {
    std::int32_t worker = 0;
    for (std::size_t first = 0, end = 0; first < list_of_.size(); first = end) {
      while (end < list_of_.size() && list_of_[end].first == list_of_[first].first) {
        ++end;
      }
      const std::int32_t count = static_cast<std::int32_t>(end - first) / width_;
      const std::int32_t unit = static_cast<std::int32_t>(first) / width_ * kv_heads_;
      const auto heads =
          static_cast<std::int32_t>(end == list_of_.size() ? lists_.heads_of_last() : 1);
      for (std::int32_t head = 0; head < kv_heads_; head += heads) {
        queue_many(worker++,
                   heads == 1
                       ? DevicePlan::Queue{.first = unit + head,
                                           .steps = {kv_heads_, kv_heads_},
                                           .count = count}
                       : DevicePlan::Queue{.first = unit + head, .steps = {1, 1}, .count = heads});
      }
    }
  }

  std::span<const Entry> entries_;
  const DevicePlanOptions options_;
  const std::int32_t group_;
  const std::int32_t kv_heads_;
  std::vector<Tile> tiles_;
  Lengths few_, many_;
  Cut few_cut_, many_cut_;
  Lists lists_;
  std::int64_t list_capacity_ = 0;  // 0: no lists but equal pieces
  std::vector<Lists::Piece> pieces_;
  std::size_t next_piece_ = 0;
  bool second_ = false;     // of a pair, whose first has been cut
  std::int32_t width_ = 1;  // 2: tiles of many columns are pairs
  std::vector<std::pair<std::int64_t, std::size_t>> list_of_;  // [items of many columns] and piece
  float many_share_ = 0;  // of the time that all items take, by estimate
  DevicePlan plan_;
};

}  // namespace

void DevicePlan::clear() {
  few.clear();
  many.clear();
  rows.clear();
  parts.clear();
  blocks.clear();
  query_rows.clear();
  query_positions.clear();
  num_parts = num_merged = widest_few = 0;
  crew = {};
  queues.clear();
  counters = {};
}

DevicePlan make_device_plan(const AttentionShape& shape, std::span<const Entry> entries,
                            std::int32_t num_rows, const DevicePlanOptions& options,
                            DevicePlan memory) {
  QUIRE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
              "heads must be a multiple of kv_heads");
  QUIRE_CHECK(shape.heads / shape.kv_heads <= kManyColumns, "too many heads of one KV head");
  QUIRE_CHECK(options.block_tokens >= 1 && options.block_tokens <= kPieceTokens,
              "block_tokens outside 1..256");
  QUIRE_CHECK(options.range_tokens % kPieceTokens == 0, "ranges are whole pieces");
  QUIRE_CHECK(options.few_workers >= 1 && options.many_workers >= (options.one_kernel ? 2 : 1),
              "a worker for each family");
  return DevicePlanner(shape, entries, num_rows, options, std::move(memory)).make();
}

}  // namespace quire::attention
