#include "quire/attention/attention_plan.h"

#include <algorithm>
#include <cstdint>

#include "quire/attention/entry.h"
#include "quire/attention/tile.h"

namespace quire::attention {

void AttentionPlan::clear() {
  items.clear();
  chains.clear();
  waves.clear();
  num_result_slots = 0;
  query_positions.clear();
  first_query.clear();
  num_rows = 0;
  max_block = -1;
  counters = {};
}

TokenRange visible_tokens(const Entry& entry, const EntryRow& row, std::int32_t window_tokens) {
  const std::int32_t end = std::min(row.visible_end, entry.num_tokens);
  const std::int64_t begin =
      window_tokens > 0
          ? std::max<std::int64_t>(entry.first_token, std::int64_t{row.query_position} -
                                                          window_tokens + 1 - entry.stored_from)
          : entry.first_token;
  return begin < end ? TokenRange{static_cast<std::int32_t>(begin), end} : TokenRange{};
}

}  // namespace quire::attention
