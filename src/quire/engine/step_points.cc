#include "quire/engine/step_points.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/kept_states.h"
#include "quire/engine/running_step.h"
#include "quire/engine/step_state.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/segments.h"
#include "quire/kv/states.h"
#include "quire/kv_store/saved_states.h"
#include "quire/model/decoder.h"
#include "quire/model/forward_batch.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"
#include "quire/sched/types.h"

namespace quire::engine {
namespace {

// A length behind which a point is wanted.
struct Wanted {
  std::int32_t tokens = 0;
  bool evicts = false;  // older points give way to it
  bool stays = false;   // several histories may go on from it
};

// Returns the tokens of which a length must be a multiple to be a point. Where KV is stored block
// by block, rows of a block are gone when it is full, so points are at the ends of blocks.
std::int32_t point_step(const kv::Ledger& ledger) {
  return ledger.config().open_format() ? ledger.config().block_tokens : 1;
}

// Returns whether a step of one sampled token is to be looked at. Where an answer's end is no
// point, points are taken on the way.
bool may_keep(const kv::Ledger& ledger, const sched::ScheduledRun& run) {
  const std::int32_t step = point_step(ledger);
  return run.count > 1 || !run.samples ||
         (step > 1 && (run.first + 1) % std::lcm(step, kv::kPointDistance) == 0);
}

// Returns kv_store::check_finite() of a state in host memory.
Status check_state(EngineCore& core, std::int32_t state) {
  return core.paged_pool.on_device()
             ? Status()
             : kv_store::check_finite(core.decoder().config().state_geometry().parts,
                                      core.states.state(state));
}

// Returns the points that are wanted in a run, without those that are there.
std::vector<Wanted> wanted_points(const kv::Ledger& ledger, const sched::ScheduledRun& run) {
  const auto all = static_cast<std::int32_t>(ledger.sequences().tokens(run.sequence).size());
  std::vector<Wanted> wanted = {
      {.tokens = all - 1, .evicts = true},
      {.tokens = ledger.points().left_history_at(run.sequence), .evicts = true, .stays = true}};
  for (const kv::PointMark& mark : ledger.points().marks(run.sequence)) {
    wanted.push_back({.tokens = mark.tokens, .evicts = true, .stays = mark.stays});
  }
  for (std::int32_t distance = kv::kPointDistance; distance < all;
       distance += distance / 2 + kv::kPointDistance) {
    wanted.push_back({.tokens = all - distance});
  }
  if (run.count == 1 && run.samples) {
    wanted = {{.tokens = run.first + 1, .evicts = true}};
  }
  for (Wanted& point : wanted) {
    point.tokens -= point.tokens % point_step(ledger);
  }
  std::erase_if(wanted, [&](const Wanted& point) {
    return point.tokens <= run.first || point.tokens > run.first + run.count ||
           !ledger.points().wants_point(run.sequence, point.tokens);
  });
  std::ranges::sort(wanted, [](const Wanted& a, const Wanted& b) {
    return std::tuple(a.tokens, !a.stays, !a.evicts) < std::tuple(b.tokens, !b.stays, !b.evicts);
  });
  const auto same = std::ranges::unique(wanted, {}, &Wanted::tokens);
  wanted.erase(same.begin(), same.end());
  return wanted;
}

// Returns the maps that grow by the rows of a request.
model::StateMaps* maps_of(ActiveRequest* request) {
  const auto* const observer = request == nullptr ? nullptr : &request->request().observer;
  return observer == nullptr || *observer == nullptr ? nullptr : (*observer)->maps();
}

// Adds a run and what is kept of it: of its certain rows alone. `runs` points to captures only when
// all are there.
Status add_run(Step& step, const sched::ScheduledRun& run, ActiveRequest* request,
               std::int32_t first_row) {
  StepPoints& points = step.points;
  kv::RestorePoints& ledger = step.core.ledger.points();
  kv::RestorePoints::Places places = ledger.places(run.sequence);
  if (run.first == 0) {
    QUIRE_TRY(const bool composed, compose_state(step.core, run.sequence, places.to));
    places.from = composed ? places.to : places.from;
  }
  points.runs.push_back({.first_row = first_row,
                         .num_rows = run.count,
                         .num_assumed = run.assumed,
                         .from = places.from,
                         .to = places.to,
                         .captures = {},
                         .maps = maps_of(request),
                         .first_token = run.first});
  if (points.runs.back().maps != nullptr && run.first == 0) {
    points.runs.back().maps->begin();
  }
  sched::ScheduledRun certain = run;
  certain.count -= run.assumed;
  if (!may_keep(step.core.ledger, certain)) {
    return {};
  }
  for (const Wanted& wanted : wanted_points(step.core.ledger, certain)) {
    kv::HeldState state = ledger.take_state(wanted.evicts);
    if (!state.is_there()) {
      continue;
    }
    points.captures.push_back(
        {.row = first_row + wanted.tokens - run.first - 1, .to = state.ref().index});
    points.kept.push_back({.sequence = run.sequence,
                           .tokens = wanted.tokens,
                           .state = std::move(state),
                           .stays = wanted.stays});
  }
  return {};
}

// Adds the branches of the runs, which stand run by run.
void add_branches(StepPoints& points, const RunningStep& running) {
  points.branches.clear();
  for (const StepBranch& branch : running.branches) {
    const auto assumed = static_cast<std::size_t>(branch.tokens.depth);
    points.branches.push_back({.ancestors = std::span(branch.ancestors).last(assumed),
                               .first_row = branch.first_row,
                               .num_rows = branch.rows.count});
  }
  for (std::size_t begin = 0, end = 0; begin < points.branches.size(); begin = end) {
    const std::size_t run = running.branches[begin].run;
    while (end < points.branches.size() && running.branches[end].run == run) {
      ++end;
    }
    points.runs[run].branches = std::span(points.branches).subspan(begin, end - begin);
  }
}

}  // namespace

Result<bool> compose_state(EngineCore& core, SeqId sequence, std::int32_t to) {
  const auto block_bytes = static_cast<std::size_t>(core.paged_pool.geometry().block_bytes());
  bool is_first = true;
  std::vector<std::byte> state(
      static_cast<std::size_t>(core.decoder().config().state_geometry().state_bytes));
  for (const std::span<const BlockId> blocks : core.ledger.segments().maps_before(sequence)) {
    std::vector<std::byte> packed(blocks.size() * block_bytes);
    QUIRE_TRY_STATUS(core.paged_pool.read_blocks(blocks, packed));
    QUIRE_TRY_STATUS(core.decoder().apply_maps(packed, is_first, state));
    is_first = false;
  }
  if (!is_first) {
    QUIRE_TRY_STATUS(core.states.write(to, state));
  }
  return !is_first;
}

void add_point(EngineCore& core, SeqId sequence, std::int32_t tokens, const kv::HeldState& state,
               bool stays) {
  if (!check_state(core, state.ref().index).ok()) {
    return;
  }
  const std::optional<BlockId> block = core.ledger.points().block_of_tail(sequence, tokens);
  if (block) {
    const Status kept = core.paged_pool.read_blocks(std::array{*block},
                                                    core.states.block_beside(state.ref().index));
    if (!kept.ok()) {
      return;  // a point without its KV would be no point
    }
  }
  core.ledger.points().add(sequence, tokens, state, stays);
}

Status add_states(Step& step, const RunningStep& running, model::ForwardBatch& batch) {
  kv::RestorePoints& ledger = step.core.ledger.points();
  if (!ledger.exist()) {
    return {};
  }
  StepPoints& points = step.points;
  points.runs.clear();
  points.captures.clear();
  points.kept.clear();
  points.right.clear();
  points.right.reserve(running.runs.size());
  std::int32_t first_row = 0;
  for (std::size_t i = 0; i < running.runs.size(); ++i) {
    const sched::ScheduledRun& run = running.runs[i];
    if (const auto tail = ledger.take_tail(run.sequence)) {
      QUIRE_TRY_STATUS(step.core.paged_pool.write_blocks(
          std::array{tail->block}, step.core.states.block_beside(tail->state)));
    }
    QUIRE_TRY_STATUS(add_run(step, run, running.requests[i], first_row));
    first_row += run.count;
  }
  add_branches(points, running);
  std::size_t next = 0;
  for (model::StateRun& run : points.runs) {
    const std::size_t begin = next;
    while (next < points.captures.size() &&
           points.captures[next].row < run.first_row + run.num_rows) {
      ++next;
    }
    run.captures = std::span(points.captures).subspan(begin, next - begin);
  }
  batch.state_runs = points.runs;
  batch.states = step.core.states.view();
  return {};
}

Status check_state(Step& step, const sched::ScheduledRun& run) {
  kv::RestorePoints& ledger = step.core.ledger.points();
  const auto all = std::ssize(step.core.ledger.sequences().tokens(run.sequence));
  const bool decodes = run.samples && run.count == 1;
  if (!ledger.exist() || decodes || run.first + run.count != all) {
    return {};
  }
  Status finite = check_state(step.core, ledger.places(run.sequence).to);
  if (!finite.ok()) {
    std::erase_if(step.points.kept,
                  [&](const StepPoints::Kept& point) { return point.sequence == run.sequence; });
  }
  return finite;
}

void note_right_rows(Step& step, std::size_t index, std::int32_t count) {
  if (count > 0 && step.core.ledger.points().exist()) {
    const std::optional<std::size_t> branch = step.sampled[index].branch;
    step.points.right.push_back({.run = static_cast<std::int32_t>(index),
                                 .count = count,
                                 .branch = branch ? &step.points.branches[*branch] : nullptr});
  }
}

void advance_states(Step& step) {
  if (!step.points.right.empty()) {
    step.core.decoder().advance_states(step.points.right);
    step.points.right.clear();
  }
}

void keep_points(Step& step, const sched::ScheduledRun& run, bool ends) {
  kv::RestorePoints& ledger = step.core.ledger.points();
  if (!ledger.exist()) {
    return;
  }
  for (StepPoints::Kept& point : step.points.kept) {
    if (point.sequence == run.sequence && point.state.is_there()) {
      add_point(step.core, point.sequence, point.tokens, point.state, point.stays);
      point.state.reset();
    }
  }
  const std::int32_t length = step.core.ledger.sequences().num_computed(run.sequence);
  if (!ends) {
    return;
  }
  if (length % point_step(step.core.ledger) == 0 && ledger.wants_point(run.sequence, length)) {
    add_point(step.core, run.sequence, length, ledger.present(run.sequence), false);
  }
  ledger.thin(run.sequence);
}

}  // namespace quire::engine
