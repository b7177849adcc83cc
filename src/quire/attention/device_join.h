// Rows that see KV in several formats: each format has a device plan of its own, and rows merge the
// partials of all. Pure; no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/device_plan.h"

namespace quire::attention {

// Numbers the partials of plans for the same rows of a batch together. A row has those of the first
// plan first. All plans have the same partials afterwards. Their blocks are appended to `blocks`,
// and items name them there. Precondition: all have the same number of rows. One plan alone keeps
// all that it says.
void join_device_plans(std::span<DevicePlan* const> plans, std::vector<std::int32_t>& blocks);

}  // namespace quire::attention
