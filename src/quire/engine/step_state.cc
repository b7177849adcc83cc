#include "quire/engine/step_state.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

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
  status = {};
}

void RunningStep::forget(ActiveRequest* ended) {
  std::ranges::replace(requests, ended, static_cast<ActiveRequest*>(nullptr));
}

std::int64_t rows_of(const RunningStep& running) {
  return std::accumulate(
      running.runs.begin(), running.runs.end(), std::int64_t{0},
      [](std::int64_t sum, const sched::ScheduledRun& run) { return sum + run.count; });
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
