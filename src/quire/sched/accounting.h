// Accounting: says whether a request can ever fit, and charges its tenant.
#pragma once

#include <cstdint>

#include "quire/result.h"
#include "quire/sched/state.h"
#include "quire/sched/types.h"

namespace quire::sched {

// Returns kOverflow, with both numbers, for a request whose `tokens` tokens of KV can never fit.
[[nodiscard]] Status check_fits(const SchedulerState& state, const Request& request,
                                std::int64_t tokens);

// Charges the tenant for prompt tokens that are computed and for the token that is sampled. Tokens
// that a preempted request computes again cost nothing, nor do assumed ones before they are right.
// No effect for a request without a tenant.
void charge(SchedulerState& state, QueuedRequest& queued, const PlannedRun& run);

}  // namespace quire::sched
