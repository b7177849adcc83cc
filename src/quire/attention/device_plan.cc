#include "quire/attention/device_plan.h"

namespace quire::attention {

void DevicePlan::clear() {
  few.clear();
  many.clear();
  rows.clear();
  partials.clear();
  blocks.clear();
  query_rows.clear();
  query_positions.clear();
  num_partials = num_merged = widest_few = 0;
  cta_group = {};
  queues.clear();
  counters = {};
}

}  // namespace quire::attention
