// ForwardBatch: what the engine hands to the model for one step. Views only; valid during the call.
#pragma once

#include <cstdint>
#include <span>

#include "quire/attention/entry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {

struct ForwardBatch {
  std::span<const TokenId> token_ids;         // [T] rows of all sequences, one after the other
  std::span<const std::int32_t> positions;    // [T] rotary position of the key: segment-local
  std::span<const tensor::KVSlot> slots;      // [T] where the token's K and V are stored
  std::span<const attention::Entry> entries;  // who attends to what; every row in at least one
  std::span<const std::int32_t>
      logit_rows;  // [S] rows in [0, T) whose logits are wanted, ascending
};

}  // namespace quire::model
