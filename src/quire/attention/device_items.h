// Third stage of a device plan: cuts tiles into items, the rows of items and their partials. Pure;
// no device.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/device_cuts.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_tiles.h"

namespace quire::attention {

// Fills few, many, rows, partials and what counts them in `plan`, whose query_rows are there and
// whose partials have been sized. Returns the list of each item of many columns, in their order;
// nothing where there are no lists.
[[nodiscard]] std::vector<std::int64_t> cut_items(const AttentionShape& shape,
                                                  const DeviceTiles& tiles, const DeviceCuts& cuts,
                                                  const DevicePlanOptions& options,
                                                  DevicePlan& plan);

}  // namespace quire::attention
