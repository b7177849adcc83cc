#include "quire/engine/step_state.h"

#include <algorithm>
#include <cstddef>

#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/request_table.h"
#include "quire/engine/stats_snapshot.h"

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

Step::Step(EngineCore& of, RequestTable& table, StatsSnapshot& shown, EngineThread& on,
           device::ThreadPool& threads, const StepOptions& options)
    : core(of),
      requests(table),
      stats(shown),
      thread(on),
      pool(threads),
      builder(options.share_reads, options.shared_tokens),
      samplers(static_cast<std::size_t>(threads.threads())) {}

}  // namespace quire::engine
