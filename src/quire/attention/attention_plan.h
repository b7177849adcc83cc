// AttentionPlan: the work items of one step on the CPU. PlanMaker makes it of entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {

struct AttentionShape {
  int heads = 0;  // query heads, a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;          // the model's head size, at most kMaxHeadDim
  double softmax_scale = 0;  // usually 1 / sqrt(head_dim)
  double soft_cap = 0;       // scaled scores s become cap * tanh(s / cap); 0: they stay
};

// Up to kItemRows stacked (row, head) pairs of one entry and one KV head, in strips of kStripRows.
struct WorkItem {
  std::int32_t entry = 0;
  std::int32_t kv_head = 0;
  std::int32_t first_row = 0;  // index into the entry's rows
  std::int32_t rows = 0;
  std::int32_t first_head = 0;
  std::int32_t heads = 0;
  std::int32_t first_piece = 0;
  std::int32_t last_piece = 0;    // index behind the last piece
  std::int32_t result_slot = -1;  // first of rows * heads; -1: works on the running state
  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

// Counts of the reads of one layer, for tests, stats and explain.
struct PlanCounters {
  std::int64_t entries = 0;
  std::int64_t rows = 0;         // entry rows
  std::int64_t blocks_read = 0;  // visits of a tile to a block with a token that one of its rows
                                 // sees; a visit reads one KV head: geometry.head_block_bytes()
  friend bool operator==(const PlanCounters&, const PlanCounters&) = default;
};

struct AttentionPlan {
  // Items [first_item, first_item + num_items), of the same rows and heads over one entry after the
  // other. One thread computes them in order, and keeps their state at hand.
  struct Chain {
    std::int32_t first_item = 0;
    std::int32_t num_items = 0;
    std::int32_t after = -1;  // an earlier chain of the wave that updates rows of this one before
                              // it; -1: none
    friend bool operator==(const Chain&, const Chain&) = default;
  };
  // Chains of a wave begin in order and run side by side. Not split: chains update the running
  // state of disjoint rows, but for a chain and the one that it comes after. Split: each chain is
  // one item, which reduces one piece into result slots of its own. The slots are merged in item
  // order after the wave.
  struct Wave {
    std::int32_t first_chain = 0;
    std::int32_t num_chains = 0;
    bool split = false;
    friend bool operator==(const Wave&, const Wave&) = default;
  };
  std::vector<WorkItem> items;
  std::vector<Chain> chains;  // wave after wave
  std::vector<Wave> waves;
  std::int32_t num_result_slots = 0;          // piece results needed at the same time
  std::vector<std::int32_t> query_positions;  // one per entry row, entry after entry: rows of the
                                              // rotary table that run() wants
  std::vector<std::int32_t> first_query;      // [entries] index of the entry's first row in it
  std::int32_t num_rows = 0;                  // 1 + largest row of q that is used
  std::int32_t max_block = -1;                // largest block id that is read
  PlanCounters counters;

  void clear();  // keeps its memory
};

// Returns row `row` of an item.
[[nodiscard]] inline const EntryRow& entry_row(std::span<const Entry> entries, const WorkItem& item,
                                               int row) {
  return entries[static_cast<std::size_t>(item.entry)]
      .rows[static_cast<std::size_t>(item.first_row) + static_cast<std::size_t>(row)];
}

// Returns the tokens of the entry's run that one of its rows sees; {0, 0} if none. A window hides
// token j unless stored_from + j > query_position - window_tokens; 0 = no window.
[[nodiscard]] TokenRange visible_tokens(const Entry& entry, const EntryRow& row,
                                        std::int32_t window_tokens);

}  // namespace quire::attention
