// Last stage of a device plan, where one kernel computes both families: the CTAs that share the
// items, and a queue for each. Pure; no device.
#pragma once

#include <cstdint>
#include <span>

#include "quire/attention/device_cuts.h"
#include "quire/attention/device_plan.h"

namespace quire::attention {

// The numbers by which items are queued.
struct QueueShape {
  std::int32_t kv_heads = 0;
  std::int32_t width = 1;    // 2: items of many columns are pairs
  std::int32_t workers = 0;  // DevicePlanOptions::many_workers
};

// Fills cta_group and queues of `plan`, which has all items. `lists`: the list of each item of many
// columns, where `cuts` has lists.
void fill_queues(const QueueShape& shape, const DeviceCuts& cuts,
                 std::span<const std::int64_t> lists, DevicePlan& plan);

}  // namespace quire::attention
