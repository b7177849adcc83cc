#include "quire/engine/step_branches.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/drafts/guess.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/hooks.h"
#include "quire/engine/running_step.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_state.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/sched/room_left.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Counts what a step has left for branches.
struct BranchRoom {
  std::int64_t rows = 0;
  std::int32_t next_row = 0;  // of the batch
};

// Returns whether branches of a run have what the run itself has. They have no block that its last
// certain row fills, if that is stored in another format then. Nor have they KV that still lies
// beside a state.
bool may_branch(kv::Ledger& ledger, const sched::ScheduledRun& run) {
  const bool fills_block =
      ledger.config().open_format().has_value() &&
      (run.first + run.count - run.assumed) % ledger.config().block_tokens == 0;
  return !fills_block && !ledger.points().lacks_tail(run.sequence);
}

// Opens a fork with room for `tokens` tokens in free blocks.
std::optional<SeqId> open_fork(kv::Ledger& ledger, SeqId sequence, std::int32_t tokens) {
  const SeqId fork = ledger.sequences().fork(sequence, kv::ForkedState::kNone);
  const bool fits = sched::RoomLeft::of_free_blocks(ledger).fits(fork, tokens);
  if (fits && ledger.sequences().extend(fork, tokens).ok()) {
    return fork;
  }
  ledger.sequences().close(fork);
  return std::nullopt;
}

// Adds the branches of one run.
class BranchMaker {
 public:
  BranchMaker(Step& step, std::size_t run, std::int32_t first_row)
      : step_(step),
        run_(step.now.runs[run]),
        index_(run),
        guess_(step.speculation->guesses[run]),
        first_row_(first_row),
        rows_(guess_.tokens.size(), -1) {
    for (std::int32_t i = 0; i < run_.assumed; ++i) {
      rows_[static_cast<std::size_t>(i)] = first_row_ + certain() + i;
    }
  }

  // Returns false when no block is left.
  bool add(drafts::Branch branch, BranchRoom& room) {
    branch.count = static_cast<std::int32_t>(
        std::min<std::int64_t>(std::min(branch.count, run_.assumed - branch.depth), room.rows));
    if (branch.count < 1 || (branch.parent >= 0 && row_of(branch.parent) < 0)) {
      return true;
    }
    step_.now.branches.push_back({.run = index_,
                                  .tokens = branch,
                                  .first_row = room.next_row,
                                  .rows = {.request = run_.request,
                                           .sequence = {},
                                           .first = run_.first + certain() + branch.depth,
                                           .count = branch.count,
                                           .samples = true,
                                           .assumed = branch.count},
                                  .ancestors = ancestors_of(branch)});
    const auto fork =
        open_fork(step_.core.ledger, run_.sequence, certain() + branch.depth + branch.count);
    if (!fork) {
      step_.now.branches.pop_back();
      return false;
    }
    step_.now.branches.back().rows.sequence = *fork;
    for (std::int32_t i = 0; i < branch.count; ++i) {
      rows_[static_cast<std::size_t>(branch.first) + static_cast<std::size_t>(i)] = room.next_row++;
    }
    room.rows -= branch.count;
    return true;
  }

 private:
  [[nodiscard]] std::int32_t certain() const { return run_.count - run_.assumed; }
  [[nodiscard]] std::int32_t row_of(std::int32_t token) const {
    return rows_[static_cast<std::size_t>(token)];
  }
  // Returns the rows of the step that a branch sees before its own, in order.
  [[nodiscard]] std::vector<std::int32_t> ancestors_of(const drafts::Branch& branch) const {
    std::vector<std::int32_t> ancestors(static_cast<std::size_t>(certain()));
    std::iota(ancestors.begin(), ancestors.end(), first_row_);
    for (const std::int32_t token : drafts::path_to(guess_, branch.parent)) {
      ancestors.push_back(row_of(token));
    }
    return ancestors;
  }

  Step& step_;
  const sched::ScheduledRun& run_;
  const std::size_t index_;
  const drafts::Guess& guess_;
  const std::int32_t first_row_;
  std::vector<std::int32_t> rows_;  // [tokens of the guess] of the batch; -1: it has none
};

}  // namespace

void open_branches(Step& step) {
  if (step.speculation == nullptr || step.speculation->rows_left == 0 ||
      !step.hooks->kv_gate->idle()) {
    return;
  }
  BranchRoom room{.rows = step.speculation->rows_left,
                  .next_row = static_cast<std::int32_t>(rows_of(step.now))};
  std::int32_t first_row = 0;
  for (std::size_t i = 0; i < step.now.runs.size(); ++i) {
    const sched::ScheduledRun& run = step.now.runs[i];
    const std::vector<drafts::Branch> branches = drafts::branches_of(step.speculation->guesses[i]);
    const bool branches_off = branches.size() > 1 && branches.front().count == run.assumed;
    if (branches_off && may_branch(step.core.ledger, run)) {
      BranchMaker maker(step, i, first_row);
      for (const drafts::Branch& branch : std::span(branches).subspan(1)) {
        if (!maker.add(branch, room)) {
          return;
        }
      }
    }
    first_row += run.count;
  }
}

void close_branches(Step& step, RunningStep& running) {
  for (const StepBranch& branch : running.branches) {
    step.core.ledger.sequences().close(branch.rows.sequence);
  }
  running.branches.clear();
}

std::span<const sched::ScheduledRun> all_runs(Step& step, const RunningStep& running) {
  if (running.branches.empty()) {
    return running.runs;
  }
  std::vector<sched::ScheduledRun>& all = step.speculation->all_runs;
  all.assign(running.runs.begin(), running.runs.end());
  for (const StepBranch& branch : running.branches) {
    all.push_back(branch.rows);
  }
  return all;
}

AssumedRows assumed_rows(Step& step, const RunningStep& running) {
  if (step.speculation == nullptr) {
    return {};
  }
  Speculation& speculation = *step.speculation;
  speculation.assumed.clear();
  speculation.ancestors.assign(running.runs.size(), {});
  for (std::size_t i = 0; i < running.runs.size(); ++i) {
    const auto count = static_cast<std::size_t>(running.runs[i].assumed);
    speculation.assumed.push_back(count == 0 ? std::span<const TokenId>()
                                             : running.requests[i]->assumed().first(count));
  }
  for (const StepBranch& branch : running.branches) {
    speculation.assumed.push_back(branch.tokens_of(speculation.guesses[branch.run]));
    speculation.ancestors.push_back(branch.ancestors);
  }
  return {.tokens = speculation.assumed, .ancestors = speculation.ancestors};
}

void take_branch(Step& step, const sched::ScheduledRun& run, const StepBranch& branch) {
  step.core.ledger.sequences().exchange_kv(run.sequence, branch.rows.sequence);
  step.core.counters.branches_linked += 1;
}

}  // namespace quire::engine
