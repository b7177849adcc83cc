#include "quire/engine/step_host_points.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/host_tier.h"
#include "quire/engine/step_loads.h"
#include "quire/engine/step_points.h"
#include "quire/engine/step_state.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/types.h"
#include "quire/kv_store/host_points.h"
#include "quire/result.h"
#include "quire/sched/kept_kv.h"
#include "quire/sched/scheduler.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Writes the KV behind `first` tokens into the sequence's blocks, where there is room, and the
// state into the place for the next one.
Status write(EngineCore& core, SeqId sequence, std::int32_t first,
             const kv_store::HostPoints::Reader& point) {
  const std::vector<std::span<const std::byte>> blocks = point.blocks();
  const kv::RunView run = core.ledger.sequences().runs(sequence).back();
  for (std::size_t i = static_cast<std::size_t>(first / core.ledger.config().block_tokens);
       i < blocks.size(); ++i) {
    QUIRE_TRY_STATUS(core.paged_pool.write_blocks(run.blocks.subspan(i, 1), blocks[i]));
  }
  QUIRE_TRY_STATUS(core.states.write(core.ledger.points().places(sequence).to, point.state()));
  (void)core.ledger.points().take_tail(sequence);  // its block was written as a whole
  return {};
}

}  // namespace

bool note_host_points(Step& step) {
  EngineCore& core = step.core;
  if (core.host_points == nullptr || core.host_points->num_points() == 0) {
    return false;
  }
  bool changed = false;
  for (const RequestId id : step.plan.admit) {
    const std::optional<sched::Takes> takes = core.scheduler.takes(id);
    const std::int32_t found = takes ? host_prefix(core, takes->tokens, takes->salt) : 0;
    if (takes && found > takes->at_hand) {
      core.scheduler.note_kept(id, found);
      changed = true;
    }
  }
  return changed;
}

// A point is made of it again only if every running request can still have the state that its next
// step may need.
void bring_back(Step& step, RequestId id, SeqId sequence) {
  EngineCore& core = step.core;
  if (core.host_points == nullptr) {
    return;
  }
  const std::span<const TokenId> tokens = core.ledger.sequences().tokens(sequence);
  const std::int32_t first = core.ledger.sequences().num_computed(sequence);
  const auto point = core.host_points->open(tokens.first(tokens.size() - 1),
                                            core.ledger.sequences().use(sequence).salt);
  const std::int32_t count = point ? point->num_tokens() - first : 0;
  if (count > 0) {
    core.ledger.points().drop_owed(sequence);  // blocks of others are not written
  }
  if (!point || count <= 0 || !core.ledger.sequences().extend(sequence, count).ok() ||
      !copy_blocks(step).ok() || !write(core, sequence, first, *point).ok()) {
    return;
  }
  core.scheduler.complete({.request = id, .sequence = sequence, .first = first, .count = count},
                          std::nullopt);
  core.ledger.points().note_brought(sequence, first);
  core.scheduler.note_brought(id, first);
  core.counters.points_from_host += 1;
  const std::int32_t length = first + count;
  if (core.ledger.points().states_available() > core.scheduler.num_running() &&
      core.ledger.points().wants_point(sequence, length)) {
    add_point(core, sequence, length, core.ledger.points().present(sequence), false);
  }
}

}  // namespace quire::engine
