#include "quire/attention/device_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/attention/plan.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"

namespace quire::attention {
namespace {

constexpr std::int32_t kFewStep = 32;       // shortest range of an item of few columns
constexpr std::int32_t kManyStep = 256;     // of many
constexpr std::int64_t kMostParts = 128;    // of one entry for one row
constexpr std::int64_t kManyWorkers = 132;  // CTAs of the many-column family side by side

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class Planner {
 public:
  Planner(const AttentionShape& shape, std::span<const Entry> entries, std::int32_t num_rows,
          const DevicePlanOptions& options)
      : entries_(entries),
        options_(options),
        group_(shape.heads / shape.kv_heads),
        kv_heads_(shape.kv_heads) {
    plan_.parts.resize(static_cast<std::size_t>(num_rows));
  }

  DevicePlan make() {
    for (const Entry& entry : entries_) {
      (is_few(entry) ? few_tokens_ : many_tokens_) += work_of(entry);
      longest_ = std::max<std::int64_t>(longest_, entry.num_tokens);
    }
    for (const Entry& entry : entries_) {
      add(entry);
    }
    place_parts();
    // Longest first: what begins last should end soon.
    const auto order = [](const DevicePlan::Item& item) {
      return std::pair(item.first_token - item.last_token, item.first_row);
    };
    std::sort(plan_.many.begin(), plan_.many.end(),
              [&](const auto& a, const auto& b) { return order(a) < order(b); });
    return std::move(plan_);
  }

 private:
  // What rows [first, first + count) of an entry see together.
  struct Tile {
    std::int32_t first = 0, count = 0;
    TokenRange seen;
  };

  // The families differ in the last bits, so with fixed ranges one of them does everything.
  [[nodiscard]] bool is_few(const Entry& entry) const {
    return options_.range_tokens == 0 && std::ssize(entry.rows) * group_ <= kFewColumns;
  }

  [[nodiscard]] std::int32_t rows_of_tile(const Entry& entry) const {
    return std::max(1, (is_few(entry) ? kFewColumns : kManyColumns) / group_);
  }

  // Tokens that tiles of the entry read, over all KV heads.
  [[nodiscard]] std::int64_t work_of(const Entry& entry) const {
    std::int64_t tokens = 0;
    for (const EntryRow& row : entry.rows) {
      const TokenRange range = visible_tokens(entry, row, options_.window_tokens);
      tokens += range.end - range.begin;
    }
    return divide_up(tokens, rows_of_tile(entry)) * kv_heads_;
  }

  // Length of the ranges into which a run is cut, from its first token on.
  [[nodiscard]] std::int32_t range_tokens(bool few) const {
    if (options_.range_tokens > 0) {
      return options_.range_tokens;
    }
    const std::int64_t step = few ? kFewStep : kManyStep;
    const std::int64_t share =
        few ? divide_up(few_tokens_, options_.workers) : divide_up(many_tokens_, kManyWorkers);
    // A row with many parts waits for their merge.
    const std::int64_t least = divide_up(longest_, kMostParts);
    const std::int64_t range = divide_up(std::max({share, least, std::int64_t{1}}), step) * step;
    return static_cast<std::int32_t>(
        std::min<std::int64_t>(range, std::numeric_limits<std::int32_t>::max() / 2));
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
    const bool few = is_few(entry);
    const std::int32_t range = range_tokens(few), height = rows_of_tile(entry);
    const auto num_rows = static_cast<std::int32_t>(entry.rows.size());
    for (std::int32_t first = 0; first < num_rows; first += height) {
      const Tile tile = tile_of(entry, first, std::min(height, num_rows - first));
      for (std::int32_t begin = tile.seen.begin / range * range; begin < tile.seen.end;
           begin += range) {
        const TokenRange cut = {std::max(begin, tile.seen.begin),
                                std::min(begin + range, tile.seen.end)};
        add_item(entry, tile, cut, {.first_block = first_block, .first_row = first_query});
      }
    }
  }

  [[nodiscard]] Tile tile_of(const Entry& entry, std::int32_t first, std::int32_t count) const {
    Tile tile{.first = first, .count = count, .seen = {std::numeric_limits<int>::max(), 0}};
    for (const EntryRow& row :
         entry.rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))) {
      const TokenRange range = visible_tokens(entry, row, options_.window_tokens);
      if (range.begin < range.end) {
        tile.seen = {std::min(tile.seen.begin, range.begin), std::max(tile.seen.end, range.end)};
      }
    }
    return tile;
  }

  // `at`: first_block, and in first_row the first query, of the entry.
  void add_item(const Entry& entry, const Tile& tile, TokenRange cut, const DevicePlan::Item& at) {
    const std::int32_t step = is_few(entry) ? kFewStep : kStepTokens;
    DevicePlan::Item item{.first_block = at.first_block,
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
        plan_.rows.push_back({.query = at.first_row + i,
                              .visible_begin = seen.begin,
                              .visible_end = seen.end,
                              .part = part});
      }
    }
    item.num_rows = static_cast<std::int32_t>(plan_.rows.size()) - item.first_row;
    if (item.num_rows == 0) {
      return;
    }
    const std::int32_t tokens = options_.block_tokens;
    plan_.counters.blocks_read +=
        std::int64_t{kv_heads_} * (divide_up(cut.end, tokens) - cut.begin / tokens);
    if (is_few(entry)) {
      plan_.widest_few = std::max(plan_.widest_few, item.num_rows * group_);
    }
    (is_few(entry) ? plan_.few : plan_.many).push_back(item);
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
    }
  }

  std::span<const Entry> entries_;
  const DevicePlanOptions options_;
  const std::int32_t group_;
  const std::int32_t kv_heads_;
  std::int64_t few_tokens_ = 0, many_tokens_ = 0, longest_ = 0;
  DevicePlan plan_;
};

}  // namespace

DevicePlan make_device_plan(const AttentionShape& shape, std::span<const Entry> entries,
                            std::int32_t num_rows, const DevicePlanOptions& options) {
  QUIRE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
              "heads must be a multiple of kv_heads");
  QUIRE_CHECK(shape.heads / shape.kv_heads <= kManyColumns, "too many heads of one KV head");
  QUIRE_CHECK(options.block_tokens >= 1 && options.block_tokens <= kPieceTokens,
              "block_tokens outside 1..256");
  QUIRE_CHECK(options.range_tokens % kPieceTokens == 0, "ranges are whole pieces");
  return Planner(shape, entries, num_rows, options).make();
}

}  // namespace quire::attention
