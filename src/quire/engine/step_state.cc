#include "quire/engine/step_state.h"

#include <cstddef>

#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/request_table.h"
#include "quire/engine/stats_snapshot.h"

namespace quire::engine {

void SampledRun::clear() {
  tokens.clear();
  right = 0;
  branch.reset();
  status = {};
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
