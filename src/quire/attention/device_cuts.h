// Second stage of a device plan: decides how tiles are cut into items so that those who compute
// them end together, by estimate. Pure; no device.
#pragma once

#include <cstdint>

#include "quire/attention/device_lengths.h"
#include "quire/attention/device_lists.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_tiles.h"

namespace quire::attention {

struct DeviceCuts {
  Cut few, many;
  float many_share = 0;            // share of the workers that items of many columns should have
  std::int64_t list_capacity = 0;  // token tiles of a list; 0: equal pieces, no lists
  ListWorkers lists;               // workers by list, where there are lists
};

[[nodiscard]] DeviceCuts choose_cuts(const DeviceTiles& tiles, std::int32_t kv_heads,
                                     const DevicePlanOptions& options);

}  // namespace quire::attention
