#include "quire/engine/step_state.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/request_table.h"
#include "quire/engine/stats_snapshot.h"
#include "quire/sched/types.h"

namespace quire::engine {

void RunningStep::clear() {
  runs.clear();
  requests.clear();
  logits.clear();
  kv_errors.clear();
  launched = ahead = chosen_apart = reads_files = false;
}

void SampledRun::clear() {
  tokens.clear();
  right = 0;
  branch.reset();
  status = {};
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

Step::Step(EngineCore& of, RequestTable& table, StatsSnapshot& shown, EngineThread& on,
           device::ThreadPool& threads, const StepOptions& options)
    : core(of),
      requests(table),
      stats(shown),
      thread(on),
      pool(threads),
      builder(options.share_reads, options.shared_tokens),
      swap(options.swap),
      samplers(static_cast<std::size_t>(threads.threads())) {}

}  // namespace quire::engine
