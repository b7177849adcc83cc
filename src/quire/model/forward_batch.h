// ForwardBatch: what the engine hands to the model for one step. Views only; valid during the call.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/kernels/choice.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {

struct ForwardBatch {
  std::span<const TokenId> token_ids;  // [T] rows of all sequences, one after the other
  // [T] or empty: which row of logits of the step launched before has chosen this row's token; -1:
  // token_ids has it. For backends that choose tokens.
  std::span<const std::int32_t> ids_from;
  std::span<const std::int32_t> positions;    // [T] rotary position of the key: segment-local
  std::span<const tensor::KVSlot> slots;      // [T] where the token's K and V are stored
  std::span<const attention::Entry> entries;  // who attends to what; every row in at least one
  std::span<const std::int32_t>
      logit_rows;  // [S] rows in [0, T) whose logits are wanted, ascending
  // [S] or empty: tokens that the backend may choose itself (Decoder::last_chosen, last_logprobs).
  std::span<const kernels::Choice> choices;
  // What is changed of those rows' logits before, by rows; the rows that the backend leaves to its
  // caller have none.
  std::span<const kernels::LogitChange> changes;
  // Called with each layer before its KV is read, and may wait for it; null when all is there.
  const std::function<void(int layer)>* before_layer = nullptr;
};

// A look inside a forward pass, for choosing what to compute again.
struct ForwardProbe {
  // The pass ends at this layer with its values, fp32 [T, kv_heads * head_dim], before they would
  // be stored; nothing is stored, because the KV of the layers before is there already. -1: it runs
  // through, storing as always.
  std::int32_t values_layer = -1;
  std::vector<float> values;
  // [entries] of [tokens of the run] or empty; empty: not wanted. Increased by the probability that
  // the entry's rows give each token, summed over rows, heads and layers. No sliding window.
  std::vector<std::span<double>> mass;
};

}  // namespace quire::model
