// RunningStep: a step from its plan until its tokens are booked.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/drafts/guess.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/kernels/kv_codes.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {

// Assumed rows of a step beside those of a run itself (step_branches.h).
struct StepBranch {
  std::size_t run = 0;                  // index of the run
  drafts::Branch tokens;                // of the run's guess
  std::int32_t first_row = 0;           // of the batch
  sched::ScheduledRun rows;             // on a fork of the run's sequence
  std::vector<std::int32_t> ancestors;  // rows of the batch that are before it, uncertain or new

  // Returns its part of the guess.
  [[nodiscard]] std::span<const TokenId> tokens_of(const drafts::Guess& guess) const {
    return std::span(guess.tokens)
        .subspan(static_cast<std::size_t>(tokens.first), static_cast<std::size_t>(tokens.count));
  }
};

struct RunningStep {
  std::vector<sched::ScheduledRun> runs;        // empty: there is no such step
  std::vector<StepBranch> branches;             // behind the runs in the batch
  std::vector<ActiveRequest*> requests;         // [runs]; null for one that has ended meanwhile
  std::vector<LogitRange> logits;               // [runs and branches]
  std::vector<kernels::KVErrorSums> kv_errors;  // [rows], where somebody measures them
  bool launched = false;
  bool ahead = false;         // true: launched while the step before was still running
  bool chosen_apart = false;  // the device chooses a token for every run, whatever the tokens
                              // before it are
  bool reads_files = false;   // true: it reads KV that is still being read from files
  void clear();               // keeps its memory
  void forget(ActiveRequest* ended);
};

// Counts the rows of a step, its branches' too.
[[nodiscard]] std::int64_t rows_of(const RunningStep& running);

}  // namespace quire::engine
