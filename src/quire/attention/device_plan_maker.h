// make_device_plan: entries to the items of a GPU's kernels, in plain C++ without a device. Pure:
// same entries, same plan.
#pragma once

#include <cstdint>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/entry.h"

namespace quire::attention {

// Makes a plan. Items are sorted, the longest first. `memory` is an earlier plan whose memory is
// used again; what it holds does not matter. Preconditions (QUIRE_CHECK) as for PlanMaker::make.
// Cost: O(entry rows * ranges + blocks).
[[nodiscard]] DevicePlan make_device_plan(const AttentionShape& shape,
                                          std::span<const Entry> entries, std::int32_t num_rows,
                                          const DevicePlanOptions& options, DevicePlan memory = {});

}  // namespace quire::attention
