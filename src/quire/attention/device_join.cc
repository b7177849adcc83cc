#include "quire/attention/device_join.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/device_plan.h"
#include "quire/base/check.h"

namespace quire::attention {
namespace {

using Partials = std::vector<DevicePlan::PartialResults>;

// Moves the blocks of a plan behind `blocks`.
void append_blocks(DevicePlan& plan, std::vector<std::int32_t>& blocks) {
  const auto before = static_cast<std::int32_t>(blocks.size());
  blocks.insert(blocks.end(), plan.blocks.begin(), plan.blocks.end());
  for (auto* const items : {&plan.few, &plan.many}) {
    for (DevicePlan::WorkItem& item : *items) {
      item.first_block += before;
    }
  }
  for (DevicePlan::Queue& queue : plan.queues) {
    queue.item.first_block += before;
  }
}

// Returns the partials of all plans, row by row.
Partials all_partials(std::span<DevicePlan* const> plans, std::int32_t& num_partials,
                      std::int32_t& num_merged) {
  Partials all(plans.front()->partials.size());
  for (std::size_t row = 0; row < all.size(); ++row) {
    for (const DevicePlan* plan : plans) {
      QUIRE_CHECK(plan->partials.size() == all.size(), "plans of the same rows");
      all[row].count += plan->partials[row].count;
    }
    const bool whole = all[row].count == 1;
    all[row].first = whole ? -1 : num_partials;
    num_partials += whole ? 0 : all[row].count;
    num_merged += whole ? 0 : 1;
  }
  return all;
}

}  // namespace

void join_device_plans(std::span<DevicePlan* const> plans, std::vector<std::int32_t>& blocks) {
  for (DevicePlan* plan : plans) {
    append_blocks(*plan, blocks);
  }
  if (plans.size() < 2) {
    return;
  }
  std::int32_t num_partials = 0, num_merged = 0;
  const Partials all = all_partials(plans, num_partials, num_merged);
  std::vector<std::int32_t> taken(all.size());  // partials of each row, of the plans before
  for (DevicePlan* plan : plans) {
    for (DevicePlan::Row& row : plan->rows) {
      const auto at = static_cast<std::size_t>(row.row);
      const std::int32_t own = row.partial < 0 ? 0 : row.partial - plan->partials[at].first;
      row.partial = all[at].first < 0 ? ~row.row : all[at].first + taken[at] + own;
    }
    for (std::size_t row = 0; row < all.size(); ++row) {
      taken[row] += plan->partials[row].count;
    }
    plan->partials = all;
    plan->num_partials = num_partials;
    plan->num_merged = num_merged;
  }
}

}  // namespace quire::attention
