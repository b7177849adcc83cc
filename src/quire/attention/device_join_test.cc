#include "quire/attention/device_join.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "quire/attention/device_plan.h"
#include "quire/attention/device_plan_maker.h"
#include "quire/attention/entry.h"

namespace quire::attention {
namespace {

constexpr AttentionShape kShape{.heads = 8, .kv_heads = 2, .head_dim = 64};
constexpr DevicePlanOptions kOptions{.block_tokens = 32, .one_kernel = true, .range_tokens = 512};

// Blocks of a run: `first` and those behind it.
std::vector<std::int32_t> blocks_of(int tokens, std::int32_t first) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>((tokens + 31) / 32));
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// Row 0 sees both formats, row 1 the first one, row 2 the second one, row 3 nothing.
struct Plans {
  std::vector<std::int32_t> first_blocks = blocks_of(1200, 100);
  std::vector<std::int32_t> second_blocks = blocks_of(64, 700);
  std::vector<EntryRow> first_rows = {{0, 1250, 1200}, {1, 400, 400}};
  std::vector<EntryRow> second_rows = {{0, 60, 61}, {2, 10, 11}};
  DevicePlan first = make(first_blocks, first_rows, 1200);
  DevicePlan second = make(second_blocks, second_rows, 64);

  static DevicePlan make(const std::vector<std::int32_t>& blocks, const std::vector<EntryRow>& rows,
                         std::int32_t tokens) {
    const Entry entry{.blocks = blocks, .num_tokens = tokens, .rows = rows};
    return make_device_plan(kShape, {&entry, 1}, 4, kOptions);
  }
};

TEST(JoinDevicePlans, ARowHasThePartialsOfTheFirstPlanFirstAndWholeRowsStayWhole) {
  Plans plans;
  DevicePlan* const all[] = {&plans.first, &plans.second};
  std::vector<std::int32_t> blocks;
  join_device_plans(all, blocks);
  for (const DevicePlan* plan : all) {
    ASSERT_EQ(plan->partials.size(), 4U);
    EXPECT_EQ(plan->partials[0].count, 4) << "three ranges of 512 tokens, and one entry";
    EXPECT_EQ(plan->partials[1].first, -1);
    EXPECT_EQ(plan->partials[2].first, -1);
    EXPECT_EQ(plan->partials[3].count, 0);
    EXPECT_EQ(plan->num_partials, 4);
    EXPECT_EQ(plan->num_merged, 2) << "a row that sees nothing is written by merging";
  }
  std::set<std::int32_t> of_first, of_second;
  for (const DevicePlan::Row& row : plans.first.rows) {
    if (row.row == 0) {
      of_first.insert(row.partial);
    } else {
      EXPECT_EQ(row.partial, ~row.row);
    }
  }
  for (const DevicePlan::Row& row : plans.second.rows) {
    if (row.row == 0) {
      of_second.insert(row.partial);
    } else {
      EXPECT_EQ(row.partial, ~row.row);
    }
  }
  const std::int32_t first = plans.first.partials[0].first;
  EXPECT_EQ(of_first, (std::set<std::int32_t>{first, first + 1, first + 2}));
  EXPECT_EQ(of_second, std::set<std::int32_t>{first + 3});
}

TEST(JoinDevicePlans, ItemsAndQueuesNameTheirBlocksAmongThoseOfAllPlans) {
  Plans plans;
  DevicePlan* const all[] = {&plans.first, &plans.second};
  std::vector<std::int32_t> blocks;
  join_device_plans(all, blocks);
  ASSERT_EQ(blocks.size(), plans.first_blocks.size() + plans.second_blocks.size());
  const auto expect_block = [&](const DevicePlan::WorkItem& item, std::int32_t id) {
    EXPECT_EQ(blocks[static_cast<std::size_t>(item.first_block)], id);
  };
  for (const DevicePlan::WorkItem& item : plans.first.few) {
    expect_block(item, 100);
  }
  for (const DevicePlan::WorkItem& item : plans.second.few) {
    expect_block(item, 700);
  }
  for (const DevicePlan::Queue& queue : plans.second.queues) {
    if (queue.count > 0) {
      expect_block(queue.item, 700);
    }
  }
}

TEST(JoinDevicePlans, OnePlanAloneKeepsAllThatItSays) {
  Plans plans;
  const std::vector<DevicePlan::PartialResults> partials = plans.first.partials;
  const std::int32_t partial = plans.first.rows.front().partial;
  DevicePlan* const all[] = {&plans.first};
  std::vector<std::int32_t> blocks;
  join_device_plans(all, blocks);
  EXPECT_EQ(blocks, plans.first_blocks);
  EXPECT_EQ(plans.first.rows.front().partial, partial);
  for (std::size_t row = 0; row < partials.size(); ++row) {
    EXPECT_EQ(plans.first.partials[row].first, partials[row].first);
  }
}

}  // namespace
}  // namespace quire::attention
