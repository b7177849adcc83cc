#include "quire/engine/step_room.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/hooks.h"
#include "quire/engine/step_state.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kMostMoves = 64;       // of one step
constexpr std::int64_t kStepsBetween = 16;    // since looking at what rests takes time
constexpr std::int32_t kShareThatIsFew = 16;  // blocks: 1 of so many is free

}  // namespace

bool coalesce(Step& step, bool must) {
  const kv::LedgerCounts counts = step.core.ledger.counts();
  const std::int64_t now = step.core.counters.steps;
  const bool few = counts.blocks_free < counts.blocks_total / kShareThatIsFew;
  const bool due = step.coalesced_at < 0 || now >= step.coalesced_at + kStepsBetween;
  if (!must && !(few && due)) {
    return false;
  }
  step.coalesced_at = now;
  return step.hooks->holders->coalesce(kMostMoves) > 0;
}

bool may_get_blocks(const Step& step) {
  return step.hooks->holders->await_blocks() || step.thread.has_tasks();
}

Error no_room_for(Step& step, const ActiveRequest& stuck) {
  if (step.core.ledger.points().exist() && step.core.ledger.points().states_available() == 0) {
    return {.code = ErrorCode::kOutOfBlocks,
            .message = base::str_cat(
                "the request does not fit now: the ", step.core.ledger.config().num_states,
                " states of ", base::format_bytes(step.core.states.view().stride),
                " are held by sequences; close some, or raise kv_budget or state_share"),
            .needed_bytes = static_cast<std::int64_t>(step.core.states.view().stride)};
  }
  const std::int64_t free_blocks = step.core.ledger.blocks_available();
  const std::int64_t needed =
      std::max(step.core.ledger.min_blocks(std::ssize(stuck.request().prompt)), free_blocks + 1);
  return {.code = ErrorCode::kOutOfBlocks,
          .message =
              base::str_cat("the request does not fit now: it needs ", needed, " blocks or more, ",
                            free_blocks, " of ", step.core.ledger.counts().blocks_total,
                            " can be had; unpin or delete something, or raise kv_budget"),
          .needed_bytes = needed * step.core.counters.block_bytes,
          .free_bytes = free_blocks * step.core.counters.block_bytes};
}

}  // namespace quire::engine
