// Assumed rows: tokens that a step computes behind the last known one, before they are certain.
//
// A drafter has proposed them, and sampling says which of them were right (docs/adr/0047). They
// take what nobody else wants: rows, time and free blocks that a plan leaves over. The ledger makes
// room for them and never hears of their tokens before they are certain.
#pragma once

#include <cstdint>
#include <span>

#include "quire/sched/state.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {

// Adds up to wanted[i] assumed rows to run i, behind its last token. Runs that do not sample get
// none, nor does a plan that admits or preempts. They take free blocks alone, so that no cached one
// goes for them. No run goes beyond the tokens that its request
// may have. An assumed row never fills a block that is stored as codes once it is full. Returns how
// many rows the plan still leaves over.
[[nodiscard]] std::int64_t assume_rows(const SchedulerState& state,
                                       std::span<const std::int32_t> wanted, StepPlan& plan);

// Returns the seconds that the plan leaves over of the bound on a step. Infinite without a bound.
[[nodiscard]] double seconds_left(const SchedulerState& state, const StepPlan& plan);

// Books a run of a request. `sampled` are the tokens behind its certain rows, in order: all but the
// last were assumed, and have KV. Gives back the room that wrong tokens took.
void book(SchedulerState& state, const QueuedRequest& queued, const ScheduledRun& run,
          std::span<const TokenId> sampled);

}  // namespace quire::sched
