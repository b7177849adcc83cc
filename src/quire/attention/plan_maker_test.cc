// The planner: tiles, waves, pieces and counters, all exact.
#include "quire/attention/plan_maker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {
namespace {

constexpr AttentionShape kGqa = {
    .heads = 32, .kv_heads = 4, .head_dim = 64, .softmax_scale = 0.125};  // 8 heads per KV head
constexpr AttentionShape kOneHead = {
    .heads = 1, .kv_heads = 1, .head_dim = 64, .softmax_scale = 0.125};

std::vector<std::int32_t> ids(int count) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(count));
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

std::vector<EntryRow> causal_rows(int first_row, int first_position, int count) {
  std::vector<EntryRow> rows;
  rows.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    rows.push_back({first_row + i, first_position + i, first_position + i + 1});
  }
  return rows;
}

std::vector<std::int32_t> entries_of(const AttentionPlan& plan, const AttentionPlan::Chain& chain) {
  std::vector<std::int32_t> entries;
  entries.reserve(static_cast<std::size_t>(chain.num_items));
  for (const WorkItem& item : std::span(plan.items)
                                  .subspan(static_cast<std::size_t>(chain.first_item),
                                           static_cast<std::size_t>(chain.num_items))) {
    entries.push_back(item.entry);
  }
  return entries;
}

TEST(AttentionPlan, StacksRowsAndHeadsOfAGroup) {
  const auto blocks = ids(32);
  const auto rows = causal_rows(0, 900, 10);
  const Entry entry{blocks, 910, rows};
  const AttentionPlan plan = make_plan(kGqa, {&entry, 1}, 32, 0, 1);
  ASSERT_EQ(plan.items.size(), 12u);  // 4 KV heads x ceil(10 / (32 / 8)) tiles
  EXPECT_EQ(plan.items[0], (WorkItem{.entry = 0,
                                     .kv_head = 0,
                                     .first_row = 0,
                                     .rows = 4,
                                     .first_head = 0,
                                     .heads = 8,
                                     .first_piece = 0,
                                     .last_piece = 4}));
  EXPECT_EQ(plan.items[11], (WorkItem{.entry = 0,
                                      .kv_head = 3,
                                      .first_row = 8,
                                      .rows = 2,
                                      .first_head = 24,
                                      .heads = 8,
                                      .first_piece = 0,
                                      .last_piece = 4}));
  ASSERT_EQ(plan.waves.size(), 1u);
  EXPECT_EQ(plan.waves[0], (AttentionPlan::Wave{0, 12, false}));
  EXPECT_EQ(plan.num_rows, 10);
  EXPECT_EQ(plan.max_block, 28);
}

TEST(AttentionPlan, CutsGroupsOfMoreThanATileOfHeads) {
  const AttentionShape shape{.heads = 71, .kv_heads = 1, .head_dim = 64, .softmax_scale = 1};
  const auto blocks = ids(1);
  const auto rows = causal_rows(0, 0, 2);
  const Entry entry{blocks, 2, rows};
  const AttentionPlan plan = make_plan(shape, {&entry, 1}, 32, 0, 1);
  ASSERT_EQ(plan.items.size(), 6u);
  EXPECT_EQ(plan.items[2].first_head, 64);
  EXPECT_EQ(plan.items[2].heads, 7);
  EXPECT_EQ(plan.items[2].rows, 1);
}

TEST(AttentionPlan, WavesKeepTheListOrderOfARowAndRunOtherRowsBeside) {
  const auto blocks = ids(8);
  const EntryRow rows[] = {{0, 300, 256}, {1, 300, 256}};
  const std::vector<Entry> entries = {{blocks, 256, {rows, 1}},  // row 0
                                      {blocks, 256, {rows, 1}},
                                      {blocks, 256, {rows + 1, 1}},  // row 1
                                      {blocks, 256, {rows, 2}}};     // both
  const AttentionPlan plan = make_plan(kOneHead, entries, 32, 0, 1);
  ASSERT_EQ(plan.waves.size(), 2u);
  std::vector<std::vector<std::int32_t>> waves;
  for (const AttentionPlan::Wave& wave : plan.waves) {
    EXPECT_FALSE(wave.split);
    waves.emplace_back();
    const auto chains = std::span(plan.chains)
                            .subspan(static_cast<std::size_t>(wave.first_chain),
                                     static_cast<std::size_t>(wave.num_chains));
    for (const AttentionPlan::Chain& chain : chains) {
      std::ranges::copy(entries_of(plan, chain), std::back_inserter(waves.back()));
    }
  }
  EXPECT_EQ(waves, (std::vector<std::vector<std::int32_t>>{{0, 1, 2}, {3}}));
  EXPECT_EQ(plan.chains, (std::vector<AttentionPlan::Chain>{{0, 2}, {2, 1}, {3, 1}}));
}

// Requests that share chunks walk them without waiting for each other after each.
TEST(AttentionPlan, TilesOverTheSameRowsFormChainsOverTheEntries) {
  const auto blocks = ids(16);
  const auto rows = causal_rows(0, 300, 10);
  std::vector<EntryRow> sees_all = rows;
  for (EntryRow& row : sees_all) {
    row.visible_end = 512;
  }
  std::vector<Entry> entries(3, Entry{blocks, 512, sees_all});
  for (const EntryRow& row : rows) {
    entries.push_back({blocks, row.visible_end, {&row, 1}});
  }
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 2);
  ASSERT_EQ(plan.waves.size(), 1u);
  EXPECT_EQ(plan.waves[0],
            (AttentionPlan::Wave{0, 52, false}));  // 4 KV heads x 3 tiles, 40 of one row
  for (std::size_t i = 0; i < 12; ++i) {
    ASSERT_EQ(plan.chains[i].num_items, 3);
    const auto first = static_cast<std::size_t>(plan.chains[i].first_item);
    for (std::size_t item = 0; item < 3; ++item) {
      EXPECT_EQ(plan.items[first + item].entry, static_cast<std::int32_t>(item));
      EXPECT_EQ(plan.items[first + item].first_row, plan.items[first].first_row);
      EXPECT_EQ(plan.items[first + item].first_head, plan.items[first].first_head);
    }
  }
}

TEST(AttentionPlan, WhatARowHasOfItsOwnWaitsOnlyForTheChainThatItSharesRowsWith) {
  const auto blocks = ids(16);
  const auto rows = causal_rows(0, 500, 10);
  std::vector<Entry> entries = {{blocks, 300, rows}};
  for (const EntryRow& row : rows) {
    entries.push_back({blocks, 512, {&row, 1}});
  }
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 2);
  ASSERT_EQ(plan.waves.size(), 1u);
  ASSERT_EQ(plan.chains.size(), 52u);
  std::int32_t last = -1;
  for (const AttentionPlan::Chain& chain : plan.chains) {
    EXPECT_GE(chain.after, last) << "what can begin first stands first";
    last = chain.after;
    const WorkItem& own = plan.items[static_cast<std::size_t>(chain.first_item)];
    if (own.entry == 0) {
      EXPECT_EQ(chain.after, -1);
      continue;
    }
    ASSERT_GE(chain.after, 0);
    const AttentionPlan::Chain& before = plan.chains[static_cast<std::size_t>(chain.after)];
    const WorkItem& shared = plan.items[static_cast<std::size_t>(before.first_item)];
    EXPECT_EQ(shared.entry, 0);
    EXPECT_EQ(shared.kv_head, own.kv_head);
    EXPECT_LE(shared.first_row, own.entry - 1);
    EXPECT_LT(own.entry - 1, shared.first_row + shared.rows);
  }
}

TEST(AttentionPlan, FewTilesAreCutIntoPiecesOfTheirOwn) {
  const auto blocks = ids(32);
  const EntryRow row{0, 1023, 1000};
  const Entry entry{blocks, 1000, {&row, 1}};
  const AttentionPlan plan = make_plan(kGqa, {&entry, 1}, 32, 0, 3);
  ASSERT_EQ(plan.items.size(), 16u);  // 4 KV heads x 4 pieces
  ASSERT_EQ(plan.waves.size(), 1u);
  EXPECT_EQ(plan.waves[0], (AttentionPlan::Wave{0, 16, true}));
  EXPECT_EQ(plan.num_result_slots, 16 * 8);
  for (std::int32_t i = 0; i < 16; ++i) {
    const WorkItem& item = plan.items[static_cast<std::size_t>(i)];
    EXPECT_EQ(item.result_slot, i * 8);
    EXPECT_EQ(item.first_piece, i % 4);
    EXPECT_EQ(item.last_piece, i % 4 + 1);
  }
  for (const int threads : {1, 2, 4}) {  // that chains keep equally busy
    EXPECT_FALSE(make_plan(kGqa, {&entry, 1}, 32, 0, threads).waves[0].split) << threads;
  }
}

TEST(AttentionPlan, OnePiecePerTileIsNotCut) {
  const auto blocks = ids(8);
  const EntryRow row{0, 255, 256};
  const Entry entry{blocks, 256, {&row, 1}};
  const AttentionPlan plan = make_plan(kGqa, {&entry, 1}, 32, 0, 8);
  EXPECT_FALSE(plan.waves[0].split);
  EXPECT_EQ(plan.num_result_slots, 0);
}

// A row over many chunks must not wait for one chunk after the other.
TEST(AttentionPlan, ConsecutiveSmallLevelsShareOneWave) {
  const auto blocks = ids(8);
  const EntryRow row{0, 300, 256};
  const std::vector<Entry> entries(20, Entry{blocks, 100, {&row, 1}});
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 8);
  ASSERT_EQ(plan.waves.size(), 1u);
  EXPECT_TRUE(plan.waves[0].split);
  ASSERT_EQ(plan.items.size(), 80u);
  for (std::size_t i = 0; i < 80; ++i) {
    EXPECT_EQ(plan.items[i].entry, static_cast<int>(i) / 4);  // merged in list order
  }
}

// A result slot and a merge cost more than the work of a few tokens.
TEST(AttentionPlan, ShortEntriesAreWalkedInTurnEvenByFewTiles) {
  const auto blocks = ids(8);
  const EntryRow row{0, 300, 256};
  const std::vector<Entry> entries(20, Entry{blocks, 16, {&row, 1}});
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 3);
  ASSERT_EQ(plan.waves.size(), 1u);
  EXPECT_EQ(plan.waves[0], (AttentionPlan::Wave{0, 4, false}));
  EXPECT_EQ(plan.chains[3], (AttentionPlan::Chain{60, 20}));
  EXPECT_EQ(plan.num_result_slots, 0);
}

// Three chains on two threads: one thread has two of them to walk.
TEST(AttentionPlan, ThreeTilesOnTwoThreadsAreCutWhereTheirPiecesAreLong) {
  const AttentionShape shape = {.heads = 9, .kv_heads = 3, .head_dim = 64, .softmax_scale = 0.125};
  const auto blocks = ids(8);
  const EntryRow rows[] = {{0, 300, 256}, {1, 300, 256}, {2, 300, 256}, {3, 300, 256}};
  const std::vector<Entry> chunks(17, Entry{blocks, 61, rows});
  const std::vector<Entry> longer(17, Entry{blocks, 250, rows});
  EXPECT_EQ(make_plan(shape, chunks, 32, 0, 2).waves[0], (AttentionPlan::Wave{0, 3, false}));
  EXPECT_EQ(make_plan(shape, longer, 32, 0, 2).waves[0], (AttentionPlan::Wave{0, 51, true}));
}

// One chain leaves all threads but one idle.
TEST(AttentionPlan, ShortEntriesAreSharedAmongThreadsThatWouldWait) {
  const auto blocks = ids(8);
  const EntryRow row{0, 300, 256};
  const std::vector<Entry> entries(150, Entry{blocks, 16, {&row, 1}});
  EXPECT_EQ(make_plan(kOneHead, entries, 32, 0, 4).waves[0], (AttentionPlan::Wave{0, 1, false}));
  EXPECT_EQ(make_plan(kOneHead, entries, 32, 0, 8).waves[0], (AttentionPlan::Wave{0, 150, true}));
}

// Whatever the order in which the requests are listed.
TEST(AttentionPlan, ChainsFindTheirRowsInEveryLevel) {
  const auto blocks = ids(8);
  const EntryRow rows[] = {{0, 300, 256}, {1, 300, 256}, {2, 300, 256}};
  std::vector<Entry> entries(1, Entry{blocks, 256, {}});
  for (const std::size_t row : {2, 0, 1, 0, 2, 2}) {
    entries.push_back({blocks, 256, {rows + row, 1}});
  }
  const AttentionPlan plan = make_plan(kOneHead, entries, 32, 0, 1);
  ASSERT_EQ(plan.waves.size(), 1u);
  std::vector<std::vector<std::int32_t>> chains;
  chains.reserve(plan.chains.size());
  for (const AttentionPlan::Chain& chain : plan.chains) {
    chains.push_back(entries_of(plan, chain));
  }
  EXPECT_EQ(chains, (std::vector<std::vector<std::int32_t>>{{2, 4}, {3}, {1, 5, 6}}));
}

TEST(AttentionPlan, PiecesOutsideEveryWindowAreSkipped) {
  const auto blocks = ids(80);
  const EntryRow rows[] = {{0, 99, 100}, {1, 2000, 2001}};
  const Entry entry{blocks, 2001, rows};
  const AttentionPlan plan = make_plan(kOneHead, {&entry, 1}, 32, 50, 2);
  ASSERT_EQ(plan.items.size(), 2u);  // pieces 0 and 7 of 0..7
  EXPECT_EQ(plan.items[0].first_piece, 0);
  EXPECT_EQ(plan.items[1].first_piece, 7);
  EXPECT_EQ(plan.counters.blocks_read, 3 + 3);  // tokens 50..99 and 1951..2000
}

TEST(AttentionPlan, CountsBlocksOncePerTileThatVisitsThem) {
  const auto blocks = ids(32);
  const auto rows = causal_rows(0, 126, 5);
  const Entry entries[] = {{blocks, 131, rows}, {blocks, 0, rows}};
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 1);
  // Per KV head: rows at 126..129 see 5 blocks, the row at 130 sees 5.
  EXPECT_EQ(plan.counters, (PlanCounters{.entries = 2, .rows = 10, .blocks_read = 40}));
  EXPECT_EQ(make_plan(kGqa, entries, 100, 0, 1).counters.blocks_read, 16);
}

// Not once per step: 64 requests over the same 32 blocks, 4 rows of 8 heads to a strip.
TEST(AttentionPlan, SharedBlocksAreVisitedOncePerTileOfStackedColumns) {
  const auto blocks = ids(32);
  std::vector<EntryRow> rows;
  for (std::int32_t row = 0; row < 64; ++row) {
    rows.push_back({row, 2000 + row, 1024});
  }
  const Entry shared{blocks, 1024, rows};
  EXPECT_EQ(make_plan(kGqa, {&shared, 1}, 32, 0, 2).counters,
            (PlanCounters{.entries = 1, .rows = 64, .blocks_read = 4 * (64 / 16) * 32}));
  // Too many threads for tiles of several strips.
  EXPECT_EQ(make_plan(kGqa, {&shared, 1}, 32, 0, 8).counters.blocks_read, 4 * (64 / 4) * 32);
  std::vector<Entry> alone;
  for (const EntryRow& row : rows) {
    alone.push_back({blocks, 1024, {&row, 1}});
  }
  EXPECT_EQ(make_plan(kGqa, alone, 32, 0, 2).counters,
            (PlanCounters{.entries = 64, .rows = 64, .blocks_read = 4 * 64 * 32}));
}

TEST(AttentionPlan, QueryPositionsFollowTheEntries) {
  const auto blocks = ids(8);
  const EntryRow rows[] = {{0, 7, 1}, {2, -5, 1}, {3, 131072, 1}};
  const Entry entries[] = {
      {blocks, 256, {rows, 2}}, {blocks, 256, {}}, {blocks, 256, {rows + 1, 2}}};
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 2);
  EXPECT_EQ(plan.query_positions, (std::vector<std::int32_t>{7, -5, -5, 131072}));
  EXPECT_EQ(plan.first_query, (std::vector<std::int32_t>{0, 2, 2}));
  EXPECT_EQ(plan.num_rows, 4);
}

TEST(AttentionPlan, VisibleTokensAreThoseBelowTheEndAndInsideTheWindow) {
  const Entry entry{{}, 100, {}};
  const auto visible = [&](EntryRow row, int window) {
    const TokenRange range = visible_tokens(entry, row, window);
    return std::pair(range.begin, range.end);
  };
  EXPECT_EQ(visible({0, 10, 11}, 0), std::pair(0, 11));
  EXPECT_EQ(visible({0, 10, 11}, 4), std::pair(7, 11));
  EXPECT_EQ(visible({0, 10, 11}, 11), std::pair(0, 11));
  EXPECT_EQ(visible({0, 500, 500}, 450), std::pair(51, 100));
  EXPECT_EQ(visible({0, 500, 500}, 400), std::pair(0, 0));
  EXPECT_EQ(visible({0, -2000000000, 5}, 2000000000), std::pair(0, 5));
  EXPECT_EQ(visible({0, 5, -3}, 0), std::pair(0, 0));
}

TEST(AttentionPlan, NothingToSeeMakesNoItems) {
  const EntryRow row{0, 5, 0};
  const Entry entry{{}, 0, {&row, 1}};
  const AttentionPlan plan = make_plan(kGqa, {&entry, 1}, 32, 0, 2);
  EXPECT_TRUE(plan.items.empty());
  EXPECT_TRUE(plan.waves.empty());
  EXPECT_EQ(plan.num_rows, 1);
  EXPECT_TRUE(make_plan(kGqa, {}, 32, 0, 2).waves.empty());
}

TEST(AttentionPlan, AnEntryOfWhichNothingIsSeenLeavesTheNextOnesAlone) {
  const auto blocks = ids(2);
  const EntryRow hidden{0, 40, 0}, seen{0, 40, 40};
  const Entry entries[] = {{blocks, 40, {&hidden, 1}}, {blocks, 40, {&seen, 1}}};
  const AttentionPlan plan = make_plan(kGqa, entries, 32, 0, 1);
  const AttentionPlan alone = make_plan(kGqa, {&entries[1], 1}, 32, 0, 1);
  EXPECT_EQ(plan.waves, alone.waves);
  EXPECT_EQ(plan.chains, alone.chains);
  EXPECT_EQ(plan.items.size(), alone.items.size());
}

TEST(AttentionPlan, SameEntriesGiveTheSamePlan) {
  const auto blocks = ids(32);
  const auto rows = causal_rows(0, 700, 50);
  const Entry entry{blocks, 750, rows};
  const AttentionPlan a = make_plan(kGqa, {&entry, 1}, 32, 200, 3);
  const AttentionPlan b = make_plan(kGqa, {&entry, 1}, 32, 200, 3);
  EXPECT_EQ(a.items, b.items);
  EXPECT_EQ(a.waves, b.waves);
  EXPECT_EQ(a.counters, b.counters);
}

TEST(PlanDeathTest, BrokenEntriesAreCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<std::int32_t> blocks = {0, -1, 2};
  const EntryRow rows[] = {{1, 95, 96}, {1, 95, 96}};
  const Entry freed{blocks, 96, {rows, 1}};
  EXPECT_DEATH((void)make_plan(kGqa, {&freed, 1}, 32, 0, 1), "freed block");
  const Entry short_list{std::span(blocks).first(1), 96, {rows, 1}};
  EXPECT_DEATH((void)make_plan(kGqa, {&short_list, 1}, 32, 0, 1), "fewer blocks");
  const Entry twice{blocks, 20, rows};
  EXPECT_DEATH((void)make_plan(kGqa, {&twice, 1}, 32, 0, 1), "ascend");
}

}  // namespace
}  // namespace quire::attention
