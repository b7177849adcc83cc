// The planner: entries to work items, in plain C++ without a device. Pure: same entries, same plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/entry.h"

namespace quire::attention {

inline constexpr int kPieceTokens = 256;  // canonical piece: changing it changes bits
inline constexpr int kTileRows = 32;      // stacked (row, head) pairs of one work item

struct AttentionShape {
  int heads = 0;  // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;          // as the model says; at most 256
  double softmax_scale = 0;  // usually 1 / sqrt(head_dim)
};

// Up to kTileRows stacked (row, head) pairs of one entry and one KV head.
struct WorkItem {
  std::int32_t entry = 0;
  std::int32_t kv_head = 0;
  std::int32_t first_row = 0;  // index into the entry's rows
  std::int32_t rows = 0;
  std::int32_t first_head = 0;
  std::int32_t heads = 0;
  std::int32_t first_piece = 0;
  std::int32_t last_piece = 0;  // one past
  std::int32_t slot = -1;  // first of rows * heads piece results; -1: works on the running state
};

// Counters for tests, stats and explain: what one layer reads.
struct PlanCounters {
  std::int64_t entries = 0;
  std::int64_t rows = 0;         // entry rows
  std::int64_t blocks_read = 0;  // blocks visited, once per tile that visits them
};

struct Plan {
  struct Wave {  // items of a wave touch disjoint rows or disjoint slots
    std::int32_t first_item = 0;
    std::int32_t num_items = 0;
    bool split = false;  // pieces were computed apart and are merged after the wave
  };
  std::vector<WorkItem> items;
  std::vector<Wave> waves;
  std::int32_t num_slots = 0;                 // piece results needed at the same time
  std::vector<std::int32_t> query_positions;  // one per entry row, entry after entry: rows of the
                                              // rotary table that run() wants
  std::vector<std::int32_t> first_query;      // [entries] index of the entry's first row in it
  PlanCounters counters;
};

// `window_tokens` 0 = none. Plans differ per window, so a model with two windows makes two.
[[nodiscard]] Plan make_plan(const AttentionShape& shape, std::span<const Entry> entries,
                             std::int32_t block_tokens, std::int32_t window_tokens, int threads);

}  // namespace quire::attention
