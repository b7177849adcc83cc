// KV that is copied or read from files while steps use it.
//
// Thread rule: the engine thread.
#pragma once

#include <span>
#include <vector>

#include "quire/engine/hooks.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"
#include "quire/sched/types.h"

namespace quire::engine {

// Makes the copies that the ledger has ordered. After an error nothing that is cached may be found.
[[nodiscard]] Status copy_blocks(Step& step);
// Makes them for a call between two steps. Clears the prefix cache when one fails.
[[nodiscard]] Status copy_blocks_now(Step& step);
// Returns the loads that runs of the step still wait for.
[[nodiscard]] std::vector<KvGate::LoadRef> awaited_loads(const Step& step,
                                                         std::span<const sched::ScheduledRun> runs);
// Returns the error of KV that the run has seen and that was not what its file should have held.
[[nodiscard]] Status check_loaded(const Step& step, const sched::ScheduledRun& run);

}  // namespace quire::engine
