#include "quire/chunks/band_states.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/chunks/blend.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/states.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/decoder.h"
#include "quire/model/forward_batch.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"

namespace quire::chunks {

Result<std::vector<std::byte>> read_maps(const BlendContext& context,
                                         std::span<const BlockId> blocks) {
  const auto block_bytes = static_cast<std::size_t>(context.paged_pool.geometry().block_bytes());
  std::vector<std::byte> packed(blocks.size() * block_bytes);
  QUIRE_TRY_STATUS(context.paged_pool.read_blocks(blocks, packed));
  return packed;
}

Result<BandStates> BandStates::behind(const BlendContext& context,
                                      std::span<const std::span<const BlockId>> maps) {
  BandStates states(context);
  kv::RestorePoints& points = context.ledger.points();
  if (!points.exist()) {
    return states;
  }
  states.state_ = points.take_state(true);
  if (!states.state_.is_there()) {
    return {ErrorCode::kOutOfBlocks,
            "no state is free for computing layers again; close some sequences, or raise kv_budget "
            "or state_share"};
  }
  const std::span<std::byte> bytes = context.states->state(states.state_.ref().index);
  for (const std::span<const BlockId> blocks : maps) {
    QUIRE_TRY(const std::vector<std::byte> packed, read_maps(context, blocks));
    QUIRE_TRY_STATUS(context.decoder.apply_maps(packed, !states.is_there_, bytes));
    states.is_there_ = true;
  }
  return states;
}

void BandStates::add_to(model::ForwardBatch& batch, model::StateMaps* maps,
                        std::int32_t first_token) {
  if (!state_.is_there()) {
    return;
  }
  const std::int32_t state = state_.ref().index;
  run_ = {.first_row = 0,
          .num_rows = static_cast<std::int32_t>(std::ssize(batch.token_ids)),
          .from = is_there_ ? state : -1,
          .to = state,
          .captures = {},
          .maps = maps,
          .first_token = first_token};
  is_there_ = true;
  batch.state_runs = {&run_, 1};
  batch.states = context_->states->view();
}

std::span<const std::byte> BandStates::bytes() const {
  return context_->states->state(state_.ref().index);
}

}  // namespace quire::chunks
