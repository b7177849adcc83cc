// Branches of guesses in a step: other ways on than a run's own assumed rows (docs/adr/0051).
//
// A branch is a fork of the run's sequence. They share full blocks, and each has the block that it
// writes. The pass stores rows before a branch's first one in its blocks, too. So a branch reads a
// plain sequence, and its rows have the bits of decoding.
//
// Thread rule: the engine thread.
#pragma once

#include <span>

#include "quire/engine/batch_builder.h"
#include "quire/engine/step_state.h"
#include "quire/sched/types.h"

namespace quire::engine {

// Makes branches of the guesses of `now`, which is committed, as far as the rows that its plan
// leaves over and free blocks go.
void open_branches(Step& step);
// Forgets the branches of a step, whose blocks are free again.
void close_branches(Step& step, RunningStep& running);

// Returns the runs of a step with its branches behind them, and what the batch must know of its
// assumed rows. Valid until the next call.
[[nodiscard]] std::span<const sched::ScheduledRun> all_runs(Step& step, const RunningStep& running);
[[nodiscard]] AssumedRows assumed_rows(Step& step, const RunningStep& running);

// Gives the run the KV of a branch whose tokens are right: both exchange their blocks, and nothing
// is copied.
void take_branch(Step& step, const sched::ScheduledRun& run, const StepBranch& branch);

}  // namespace quire::engine
