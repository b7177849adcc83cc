#include "quire/engine/running_step.h"

#include <algorithm>
#include <cstdint>

#include "quire/engine/active_request.h"
#include "quire/sched/types.h"

namespace quire::engine {

void RunningStep::clear() {
  runs.clear();
  requests.clear();
  logits.clear();
  kv_errors.clear();
  launched = ahead = chosen_apart = reads_files = false;
}

void RunningStep::forget(ActiveRequest* ended) {
  std::ranges::replace(requests, ended, static_cast<ActiveRequest*>(nullptr));
}

std::int64_t rows_of(const RunningStep& running) {
  std::int64_t rows = 0;
  for (const sched::ScheduledRun& run : running.runs) {
    rows += run.count;
  }
  for (const StepBranch& branch : running.branches) {
    rows += branch.rows.count;
  }
  return rows;
}

}  // namespace quire::engine
