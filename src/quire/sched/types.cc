#include "quire/sched/types.h"

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::sched {

Status SchedulerConfig::validate() const {
  if (max_batch_tokens < 1 || max_running < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_batch_tokens is ", max_batch_tokens, " and max_running is ",
                          max_running, "; give at least 1")};
  }
  if (block_bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("block_bytes is ", block_bytes, "; give 0 (not known) or more")};
  }
  if (!(aging_seconds > 0) || !(decode_weight >= 0) || !(max_wait_seconds >= 0) ||
      !(max_gap_seconds >= 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("aging_seconds is ", aging_seconds, ", decode_weight ", decode_weight,
                          ", max_wait_seconds ", max_wait_seconds, ", max_gap_seconds ",
                          max_gap_seconds, "; give the first above 0, the others 0 or more")};
  }
  return {};
}

void StepPlan::clear() {
  preempt.clear();
  make_way.clear();
  admit.clear();
  runs.clear();
  drop.clear();
  stuck.reset();
  slowed = false;
}

}  // namespace quire::sched
