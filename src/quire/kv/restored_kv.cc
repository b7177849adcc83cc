#include "quire/kv/restored_kv.h"

#include <algorithm>
#include <cstdint>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

void RestoredKV::begin_behind_window(SeqId id, std::int32_t num_tokens) {
  Sequence& sequence = state_->sequence(id);
  if (sequence.use().past == BehindWindow::kFrees) {
    sequence.begin_behind(blocks_to_give_up(state_->shared.config(), num_tokens));
  }
}

Status RestoredKV::begin_without_parts(SeqId id, std::int32_t num_tokens, std::int32_t blocks) {
  const SharedBlocks& shared = state_->shared;
  const std::int32_t there = state_->sequence(id).open().blocks.size();
  const std::int32_t without_parts = std::max(blocks - there, 0);
  const std::int32_t whole =
      std::max(blocks_for_tokens(shared.config(), num_tokens) - std::max(blocks, there), 0);
  if (!has_room(shared, whole, without_parts)) {
    BlockCounts needed;
    needed[kOwnFormat] = whole + without_parts;
    return state_->no_room(num_tokens, needed);
  }
  state_->sequence(id).begin_behind(blocks);
  return {};
}

void RestoredKV::advance_unpublished(SeqId id, std::int32_t count) {
  Sequence& sequence = state_->sequence(id);
  QUIRE_CHECK(
      state_->shared.config().window_tokens == 0 || sequence.use().past == BehindWindow::kKeeps,
      "a window would free blocks that are being written");
  sequence.advance_unpublished(count);
}

void RestoredKV::publish(SeqId id) { state_->sequence(id).publish(); }

}  // namespace quire::kv
