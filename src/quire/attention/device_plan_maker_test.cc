// The planner of the GPU kernels, without a GPU. Oracle: what each row sees, by visible_tokens.
#include "quire/attention/device_plan_maker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {
namespace {

struct Scene {
  std::vector<std::vector<std::int32_t>> blocks;
  std::vector<std::vector<EntryRow>> rows;
  std::vector<Entry> entries;
  std::int32_t num_rows = 0;
};

// Entries of random lengths over random rows; blocks of 16 tokens.
Scene random_scene(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
  Scene scene{.num_rows = up_to(150)};
  const int entries = up_to(6);
  for (int i = 0; i < entries; ++i) {
    const std::int32_t tokens = up_to(3000);
    scene.blocks.emplace_back(static_cast<std::size_t>((tokens + 15) / 16), i);
    auto& rows = scene.rows.emplace_back();
    for (std::int32_t row = 0; row < scene.num_rows; ++row) {
      if (up_to(3) == 1) {
        const std::int32_t end = up_to(tokens);
        rows.push_back({row, end - 1, end});
      }
    }
    scene.entries.push_back({.num_tokens = tokens});
  }
  for (std::size_t i = 0; i < scene.entries.size(); ++i) {
    scene.entries[i].blocks = scene.blocks[i];
    scene.entries[i].rows = scene.rows[i];
  }
  return scene;
}

// How often each (query, token) pair is computed, and in which partial.
struct Coverage {
  std::map<std::pair<std::int32_t, std::int32_t>, int> times;  // (query, token)
  std::map<std::int32_t, std::vector<std::pair<std::int32_t, std::int32_t>>>
      partials;  // batch row -> (partial, query)
};

Coverage coverage_of(const DevicePlan& plan) {
  Coverage coverage;
  for (const auto* items : {&plan.few, &plan.many}) {
    for (const DevicePlan::WorkItem& item : *items) {
      for (std::int32_t i = 0; i < item.num_rows; ++i) {
        const DevicePlan::Row& row = plan.rows[static_cast<std::size_t>(item.first_row + i)];
        EXPECT_LE(item.first_token, row.visible_begin);
        EXPECT_LE(row.visible_end, item.last_token);
        for (std::int32_t token = row.visible_begin; token < row.visible_end; ++token) {
          ++coverage.times[{row.query, token}];
        }
        const std::int32_t batch_row = plan.query_rows[static_cast<std::size_t>(row.query)];
        EXPECT_EQ(row.row, batch_row);
        coverage.partials[batch_row].emplace_back(row.partial, row.query);
      }
    }
  }
  return coverage;
}

// How often each queued item, an item for one KV head, is taken: [many, few][number].
std::array<std::vector<int>, 2> taken_items(const DevicePlan& plan, std::int32_t kv_heads) {
  const std::int32_t width = 1 + plan.cta_group.pairs;
  const auto queued = [&](const auto& items) { return items.size() * std::size_t(kv_heads); };
  std::array<std::vector<int>, 2> taken{std::vector<int>(queued(plan.many)),
                                        std::vector<int>(queued(plan.few))};
  for (std::size_t i = 0; i < plan.queues.size(); ++i) {
    const auto cta = static_cast<std::int32_t>(i / 2);
    const DevicePlan::Queue& queue = plan.queues[i];
    const bool many = queue.kind >= DevicePlan::Queue::Kind::kMany;
    if (many && i % 2 == 1) {
      continue;  // the same again
    }
    std::int32_t number = queue.first;
    for (std::int32_t round = 0; round < queue.count; ++round) {
      const std::int32_t item = many ? number / kv_heads * width + cta % width : number / kv_heads;
      const auto& items = many ? plan.many : plan.few;
      EXPECT_TRUE(round > 0 ||
                  queue.item.first_row == items.at(static_cast<std::size_t>(item)).first_row);
      ++taken[many ? 0 : 1].at(static_cast<std::size_t>(item * kv_heads + number % kv_heads));
      number += queue.strides[round % 2];
    }
  }
  return taken;
}

// A family without CTAs would leave its rows as they were.
TEST(DevicePlan, WhereOneKernelComputesBothFamiliesEachThatHasItemsHasCtasAndAllFitTheDevice) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const Scene scene = random_scene(seed);
    for (const int workers : {2, 3, 132}) {
      const auto plan = make_device_plan(
          {.heads = 8, .kv_heads = 2, .head_dim = 64}, scene.entries, scene.num_rows,
          {.block_tokens = 16, .many_workers = workers, .one_kernel = true});
      const DevicePlan::CtaGroup& group = plan.cta_group;
      ASSERT_EQ(group.few_workers > 0, !plan.few.empty());
      ASSERT_EQ(group.many_workers > 0, !plan.many.empty());
      ASSERT_LE(group.few_workers + group.many_workers, workers);
      for (const auto& times : taken_items(plan, 2)) {
        ASSERT_TRUE(std::ranges::all_of(times, [](int count) { return count == 1; })) << seed;
      }
    }
  }
}

// `rows` rows behind one run of `common` tokens, and each behind one of `own`.
DevicePlan plan_of_two_levels(std::int32_t rows, std::int32_t common, std::int32_t own) {
  const std::vector<std::int32_t> blocks(static_cast<std::size_t>(common / 32), 1);
  std::vector<EntryRow> all;
  std::vector<std::vector<EntryRow>> each;
  for (std::int32_t row = 0; row < rows; ++row) {
    all.push_back({row, common - 1, common});
    each.push_back({{row, own - 1, own}});
  }
  std::vector<Entry> entries{{.blocks = blocks, .num_tokens = common, .rows = all}};
  for (const auto& row : each) {
    entries.push_back({.blocks = blocks, .num_tokens = own, .rows = row});
  }
  return make_device_plan({.heads = 32, .kv_heads = 8, .head_dim = 128}, entries, rows,
                          {.block_tokens = 32, .many_workers = 132, .one_kernel = true});
}

// Tiles of kTokenTile tokens of each CTA for many columns.
std::vector<std::int32_t> token_tiles_of_ctas(const DevicePlan& plan, std::int32_t kv_heads) {
  const std::int32_t width = 1 + plan.cta_group.pairs;
  std::vector<std::int32_t> tiles;
  for (std::int32_t cta = 0; cta < std::ssize(plan.queues) / 2; ++cta) {
    const DevicePlan::Queue& queue = plan.queues[static_cast<std::size_t>(2 * cta)];
    if (queue.kind < DevicePlan::Queue::Kind::kMany) {
      continue;
    }
    std::int32_t number = queue.first, sum = 0;
    for (std::int32_t round = 0; round < queue.count; ++round) {
      const DevicePlan::WorkItem& item =
          plan.many[static_cast<std::size_t>(number / kv_heads * width + cta % width)];
      sum += (item.last_token - item.first_token + kTokenTile - 1) / kTokenTile;
      number += queue.strides[round % 2];
    }
    tiles.push_back(sum);
  }
  return tiles;
}

// Equal pieces leave a last round that is half empty; lists of pieces end together.
TEST(DevicePlan, WhereEqualPiecesLeaveARoundHalfEmptyTilesAreCutIntoListsThatEndTogether) {
  for (const auto& [rows, common, own] : {std::tuple{256, 8192, 128}, {128, 8192, 256}}) {
    const DevicePlan plan = plan_of_two_levels(rows, common, own);
    for (const auto& times : taken_items(plan, 8)) {
      EXPECT_TRUE(std::ranges::all_of(times, [](int count) { return count == 1; }));
    }
    const std::vector<std::int32_t> tiles = token_tiles_of_ctas(plan, 8);
    const double mean =
        std::accumulate(tiles.begin(), tiles.end(), 0.0) / static_cast<double>(tiles.size());
    EXPECT_LE(*std::ranges::max_element(tiles), 1.1 * mean) << rows;
  }
}

// Two CTAs bring what both read once; an odd number of tiles has one without a neighbour.
TEST(DevicePlan, TilesThatSeeTheSameArePairsOverTheSameTokens) {
  for (const std::int32_t rows : {64, 256}) {
    const DevicePlan plan = plan_of_two_levels(rows, 8192, 128);
    ASSERT_EQ(plan.cta_group.pairs, 1) << rows;
    ASSERT_EQ(plan.cta_group.many_workers % 2, 0);
    for (std::size_t i = 0; i < plan.many.size(); i += 2) {
      EXPECT_EQ(plan.many[i].first_token, plan.many[i + 1].first_token);
      EXPECT_EQ(plan.many[i].last_token, plan.many[i + 1].last_token);
      EXPECT_EQ(plan.many[i].first_block, plan.many[i + 1].first_block);
      EXPECT_NE(plan.many[i].first_row, plan.many[i + 1].first_row);
    }
  }
  EXPECT_EQ(plan_of_two_levels(32, 8192, 128).cta_group.pairs, 0);
}

// Neighbours share a road to the second-level cache.
TEST(DevicePlan, WhereCtasOfFewColumnsAreManyTheyAreSpreadOverTheOthers) {
  const DevicePlan plan = plan_of_two_levels(64, 8192, 512);
  ASSERT_LE(plan.cta_group.many_workers, 2 * plan.cta_group.few_workers);
  for (const auto& times : taken_items(plan, 8)) {
    EXPECT_TRUE(std::ranges::all_of(times, [](int count) { return count == 1; }));
  }
  const auto few_of = [&](std::size_t first, std::size_t last) {
    return std::count_if(
        plan.queues.begin() + 2 * first, plan.queues.begin() + 2 * last,
        [](const DevicePlan::Queue& queue) { return queue.kind == DevicePlan::Queue::Kind::kFew; });
  };
  EXPECT_NEAR(few_of(0, 66), few_of(66, 132), 4);
  EXPECT_NEAR(few_of(0, 16), few_of(16, 32), 4);
  EXPECT_EQ(few_of(0, 132), 2 * plan.cta_group.few_workers);
}

// Half as many items leave half as many partials; but not where some workers would have nothing to
// do.
TEST(DevicePlan, FewLongItemsAreOneToAMultiprocessorWhereThatEndsNoLater) {
  const std::vector<std::int32_t> blocks(256, 1);
  const auto items = [&](int rows) {
    std::vector<std::vector<EntryRow>> seen;
    for (std::int32_t i = 0; i < rows; ++i) {
      seen.push_back({{i, 8191, 8192}});
    }
    std::vector<Entry> entries;
    for (const auto& row : seen) {
      entries.push_back({.blocks = blocks, .num_tokens = 8192, .rows = row});
    }
    return make_device_plan({.heads = 32, .kv_heads = 8, .head_dim = 128}, entries, rows,
                            {.block_tokens = 32, .many_workers = 132, .one_kernel = true})
        .few.size();
  };
  EXPECT_EQ(items(1), 16u);
  EXPECT_EQ(items(16), 16u);
  EXPECT_GT(items(9), 18u) << "72 of 132 multiprocessors would read";
}

// 64 rows, each behind 8 of 32 runs of 1024 tokens and a run of its own.
DevicePlan plan_of_many_chunks(std::int32_t range_tokens) {
  const std::vector<std::int32_t> blocks(32, 1);
  std::vector<std::vector<EntryRow>> rows(32 + 64);
  std::vector<Entry> entries;
  for (std::int32_t row = 0; row < 64; ++row) {
    for (std::int32_t run = row % 4; run < 32; run += 4) {
      rows[static_cast<std::size_t>(run)].push_back({row, 1023, 1024});
    }
    rows[static_cast<std::size_t>(32 + row)].push_back({row, 255, 256});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    entries.push_back({.blocks = blocks, .num_tokens = i < 32 ? 1024 : 256, .rows = rows[i]});
  }
  return make_device_plan(
      {.heads = 32, .kv_heads = 8, .head_dim = 128}, entries, 64,
      {.block_tokens = 32, .many_workers = 132, .one_kernel = true, .range_tokens = range_tokens});
}

// Two tiles in four pieces are 64 queued items: one to each of 64 multiprocessors, and on 79 still.
TEST(DevicePlan, NoMoreMultiprocessorsTakeItemsOfManyColumnsThanEndEarlier) {
  const DevicePlan plan = plan_of_two_levels(64, 8192, 512);
  ASSERT_EQ(plan.many.size(), 8u);
  EXPECT_EQ(plan.cta_group.many_workers, 64);
}

TEST(DevicePlan, WithFixedRangesRowsThatAreFewHaveTheBitsThatTheyHaveAmongMany) {
  EXPECT_TRUE(plan_of_many_chunks(512).like_many);
  EXPECT_FALSE(plan_of_many_chunks(0).like_many);
}

// Rows of one entry that are two tiles, over several ranges: what reads a range stands side by
// side.
TEST(DevicePlan, ItemsOfTheSameTokensAreNeighbours) {
  const std::vector<std::int32_t> blocks(256, 1);
  std::vector<EntryRow> rows;
  for (std::int32_t row = 0; row < 64; ++row) {
    rows.push_back({row, 8191, 8192});
  }
  const Entry entry{.blocks = blocks, .num_tokens = 8192, .rows = rows};
  const DevicePlan plan = make_device_plan(
      {.heads = 32, .kv_heads = 8, .head_dim = 128}, {&entry, 1}, 64,
      {.block_tokens = 32, .many_workers = 132, .one_kernel = true, .range_tokens = 1024});
  ASSERT_EQ(plan.many.size(), 16u);
  for (std::size_t i = 0; i < plan.many.size(); i += 2) {
    EXPECT_EQ(plan.many[i].first_token, plan.many[i + 1].first_token);
    EXPECT_LT(plan.many[i].first_row, plan.many[i + 1].first_row);
  }
}

TEST(DevicePlan, EveryRowComputesEveryTokenThatItSeesOnceInPartialsOfItsOwnInOrder) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const Scene scene = random_scene(seed);
    const std::int32_t window = seed % 3 == 0 ? 200 : 0;
    const DevicePlan plan =
        make_device_plan({.heads = 8, .kv_heads = 2, .head_dim = 64}, scene.entries, scene.num_rows,
                         {.block_tokens = 16,
                          .window_tokens = window,
                          .few_workers = 100,
                          .one_kernel = seed % 5 == 0,
                          .range_tokens = seed % 2 == 0 ? 0 : 512});
    Coverage coverage = coverage_of(plan);
    std::int32_t query = 0;
    std::size_t pairs = 0;
    for (const Entry& entry : scene.entries) {
      for (const EntryRow& row : entry.rows) {
        const TokenRange range = visible_tokens(entry, row, window);
        for (std::int32_t token = range.begin; token < range.end; ++token) {
          ASSERT_EQ((coverage.times[{query, token}]), 1) << "seed " << seed;
          ++pairs;
        }
        ++query;
      }
    }
    ASSERT_EQ(coverage.times.size(), pairs) << "nothing else";
    std::int32_t next = 0, merged = 0;
    for (std::int32_t row = 0; row < scene.num_rows; ++row) {
      auto& partials = coverage.partials[row];
      std::ranges::sort(partials);
      const DevicePlan::PartialResults& place = plan.partials[static_cast<std::size_t>(row)];
      ASSERT_EQ(place.count, std::ssize(partials));
      if (place.count == 1) {
        ASSERT_EQ(place.first, -1) << "written whole";
        ASSERT_EQ(partials[0].first, ~row);
        continue;
      }
      ++merged;
      ASSERT_EQ(place.first, next);
      for (std::size_t i = 0; i < partials.size(); ++i) {
        ASSERT_EQ(partials[i].first, next++);
        ASSERT_TRUE(i == 0 || partials[i - 1].second <= partials[i].second) << "entries in order";
      }
    }
    ASSERT_EQ(plan.num_partials, next);
    ASSERT_EQ(plan.num_merged, merged);
  }
}

TEST(DevicePlan, FixedRangesDoNotDependOnTheBatch) {
  const std::vector<std::int32_t> blocks(100, 1);
  const std::vector<EntryRow> row{{0, 1499, 1500}};
  const Entry alone{.blocks = blocks, .num_tokens = 1500, .rows = row};
  std::vector<EntryRow> others;
  for (std::int32_t i = 1; i < 80; ++i) {
    others.push_back({i, 999, 1000});
  }
  const Entry beside{.blocks = blocks, .num_tokens = 1500, .rows = others};
  const DevicePlanOptions options{.block_tokens = 16, .range_tokens = 512};
  const AttentionShape shape{.heads = 4, .kv_heads = 4, .head_dim = 64};
  const auto ranges = [&](std::vector<Entry> entries) {
    const DevicePlan plan = make_device_plan(shape, entries, 80, options);
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    for (const DevicePlan::WorkItem& item : plan.many) {
      if (item.num_rows == 1) {
        found.emplace_back(item.first_token, item.last_token);
      }
    }
    std::ranges::sort(found);
    return found;
  };
  const std::vector<std::pair<std::int32_t, std::int32_t>> want{
      {0, 512}, {512, 1024}, {1024, 1500}};
  EXPECT_EQ(ranges({alone}), want);
  EXPECT_EQ(ranges({beside, alone}), want);
}

TEST(DevicePlan, FewColumnsGoToOneFamilyAndManyToTheOther) {
  const std::vector<std::int32_t> blocks(10, 1);
  for (const int rows : {1, 4, 5, 64}) {
    std::vector<EntryRow> seen;
    for (std::int32_t i = 0; i < rows; ++i) {
      seen.push_back({i, 99, 100});
    }
    const Entry entry{.blocks = blocks, .num_tokens = 100, .rows = seen};
    const DevicePlan plan = make_device_plan({.heads = 4, .kv_heads = 1, .head_dim = 64},
                                             {&entry, 1}, rows, {.block_tokens = 16});
    EXPECT_EQ(plan.few.empty(), rows * 4 > kFewColumns) << rows;
    EXPECT_EQ(plan.many.empty(), rows * 4 <= kFewColumns) << rows;
    EXPECT_EQ(plan.widest_few, rows * 4 <= kFewColumns ? rows * 4 : 0);
  }
}

}  // namespace
}  // namespace quire::attention
