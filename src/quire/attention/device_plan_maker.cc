#include "quire/attention/device_plan_maker.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_cuts.h"
#include "quire/attention/device_items.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_queues.h"
#include "quire/attention/device_tiles.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"

namespace quire::attention {
namespace {

void check_arguments(const AttentionShape& shape, const DevicePlanOptions& options) {
  QUIRE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
              "heads must be a multiple of kv_heads");
  QUIRE_CHECK(shape.heads / shape.kv_heads <= kManyColumns, "too many heads of one KV head");
  QUIRE_CHECK(options.block_tokens >= 1 && options.block_tokens <= kPieceTokens,
              "block_tokens outside 1..256");
  QUIRE_CHECK(options.range_tokens % kPieceTokens == 0, "ranges are whole pieces");
  QUIRE_CHECK(options.few_workers >= 1 && options.many_workers >= (options.one_kernel ? 2 : 1),
              "a worker for each family");
}

// Lists the query rows and the blocks of all entries, entry after entry.
void list_entries(std::span<const Entry> entries, std::int32_t window_tokens, DevicePlan& plan) {
  for (const Entry& entry : entries) {
    QUIRE_CHECK(window_tokens >= 0 && entry.num_tokens >= 0, "an entry without tokens");
    std::int32_t before = -1;
    for (const EntryRow& row : entry.rows) {
      QUIRE_CHECK(row.row > before && static_cast<std::size_t>(row.row) < plan.partials.size(),
                  "rows of an entry are ascending and in the batch");
      before = row.row;
      plan.query_rows.push_back(row.row);
      plan.query_positions.push_back(row.query_position);
    }
    plan.blocks.insert(plan.blocks.end(), entry.blocks.begin(), entry.blocks.end());
  }
  plan.counters.entries = std::ssize(entries);
  plan.counters.rows = std::ssize(plan.query_rows);
}

}  // namespace

DevicePlan make_device_plan(const AttentionShape& shape, std::span<const Entry> entries,
                            std::int32_t num_rows, const DevicePlanOptions& options,
                            DevicePlan memory) {
  check_arguments(shape, options);
  DevicePlan plan = std::move(memory);
  plan.clear();
  plan.like_many = few_are_like_many(options);
  plan.partials.resize(static_cast<std::size_t>(num_rows));
  list_entries(entries, options.window_tokens, plan);
  const DeviceTiles tiles = cut_device_tiles(shape, entries, options);
  const DeviceCuts cuts = choose_cuts(tiles, shape.kv_heads, options);
  const std::vector<std::int64_t> lists = cut_items(shape, tiles, cuts, options, plan);
  if (options.one_kernel) {
    fill_queues({shape.kv_heads, tiles.width, options.many_workers}, cuts, lists, plan);
  }
  return plan;
}

}  // namespace quire::attention
