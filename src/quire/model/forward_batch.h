// ForwardBatch: the arrays that the engine gives the model for one step. All are views, valid
// during the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::model {

class StateMaps;

// A block that becomes full in a step. Its rows, stored as they were computed, are stored in
// another format too, before any row of a later block attends.
struct BlockSeal {
  std::uint8_t from_format = 0;  // view of the rows as they were computed
  std::uint8_t to_format = 0;
  std::int32_t from = 0;      // block of the first view
  std::int32_t to = 0;        // block of the second one
  std::int32_t last_row = 0;  // row of the batch that fills the block
};

// Rows of the step whose KV is stored in a second place, too. Rows of another branch of a guess see
// it there. All views, [copies].
struct RowCopies {
  std::span<const std::int32_t> rows;     // of the batch
  std::span<const tensor::KVSlot> slots;  // other ones than those of rows
  std::span<const std::uint8_t> formats;  // of the slots
};

// A state that is kept as it is behind a row.
struct StateCapture {
  std::int32_t row = 0;  // row of the batch
  std::int32_t to = 0;   // number of the state
};

// Assumed rows beside those of a run: another way on behind its certain rows.
struct StateBranch {
  std::span<const std::int32_t> ancestors;  // assumed rows before its own, in order
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;

  // Returns the row of the batch that has so many assumed ones before it on this way.
  [[nodiscard]] std::int32_t row_at(std::int32_t depth) const {
    const auto before = static_cast<std::int32_t>(ancestors.size());
    return depth < before ? ancestors[static_cast<std::size_t>(depth)] : first_row + depth - before;
  }
};

// The rows of one sequence, and the states before and behind them.
struct StateRun {
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_assumed = 0;  // rows at the end that may be wrong (Decoder::advance_states)
  std::int32_t from = -1;        // number of the state before the first row; -1: of no token
  std::int32_t to = 0;  // where the state behind the last certain row is stored; may be `from`
  std::span<const StateCapture> captures;  // by row; at other places than `from` and `to`
  std::span<const StateBranch> branches;
  StateMaps* maps = nullptr;     // grow by the rows; null: unwanted
  std::int32_t first_token = 0;  // of the chunk whose maps they are, in the first row

  // Returns the row behind the certain ones.
  [[nodiscard]] std::int32_t first_assumed() const { return first_row + num_rows - num_assumed; }
};

// Assumed rows that turned out to be right.
struct RightRows {
  std::int32_t run = 0;    // index of its StateRun
  std::int32_t count = 0;  // the first ones on their way, and no more than the run's own ones
  const StateBranch* branch = nullptr;  // at the end of their way; null: they are the run's own
};

// Layers that a pass runs, where it does not run all of them. Such a pass gives no logits. On the
// CPU alone. Layers with a state update it where the pass runs them, layer `last` too.
struct LayerBand {
  // The pass runs layers [first, last). Behind them it computes K and V of layer `last`, if there
  // is one and it stores.
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::span<const float> before =
      {};                        // [T, H] rows before layer `first`; of the tokens where it is 0
  std::span<float> behind = {};  // [T, H] gets the rows behind layer last - 1; empty: unwanted
  // True: K and V of layers first + 1 to `last` are stored, and of layer 0 where the pass begins
  // there. False: all KV is there already, and the pass only reads it.
  bool stores = true;

  [[nodiscard]] bool stores_layer(std::int64_t layer) const {
    return stores && (layer > first || layer == 0);
  }
};

// T rows of tokens, S of which have logits.
struct ForwardBatch {
  std::span<const TokenId> token_ids;  // [T] rows of all sequences, one after the other
  // [T] or empty, for backends that choose tokens. Names the row of logits of the step launched
  // before whose chosen token is this row's token. -1: token_ids has it.
  std::span<const std::int32_t> ids_from;
  std::span<const std::int32_t> positions;  // [T] rotary position of the key: segment-local
  // [T] or empty: positions at which the tokens are used in their sequences. Empty: `positions`.
  std::span<const std::int32_t> use_positions;
  std::span<const tensor::KVSlot> slots;  // [T] where the token's K and V are stored
  // Formats that slots and entries name by index. 1: the pool's own alone. The pass needs a view of
  // each layer for each.
  std::uint8_t num_formats = 1;
  std::span<const std::uint8_t> slot_formats = {};  // [T] or empty: all slots have the first format
  // [T] or empty: not 0 for rows whose K and V are in their slots already, with the same bits. They
  // are computed for the states behind them, and not stored (ADR 0061).
  std::span<const std::uint8_t> kept = {};
  std::span<const BlockSeal> seals = {};      // in any order
  RowCopies copies = {};                      // on the CPU alone
  std::span<const attention::Entry> entries;  // attention; every row is in at least one entry
  std::span<const std::int32_t>
      logit_rows;  // [S] rows in [0, T) whose logits are wanted, ascending
  // [S] or empty: tokens that the backend may choose itself (Decoder::last_chosen, last_logprobs).
  std::span<const kernels::Choice> choices;
  // Changes of those rows' logits before the choice, ordered by row. Rows that the backend leaves
  // to its caller have none.
  std::span<const kernels::LogitChange> changes;
  // Called with each layer before its KV is read, and may wait for it; null if all KV is there.
  const std::function<void(int layer)>* before_layer = nullptr;
  // For models with states: every row is in one run, or in one branch of a run.
  std::span<const StateRun> state_runs = {};
  tensor::StateView states = {};
  // [T] or empty: increased by what storing the rows' KV as codes has changed.
  std::span<kernels::KVErrorSums> kv_errors = {};
  const LayerBand* band = nullptr;  // layers to run; null: all
};

// The queries of all rows in one layer, fp32, before they are rotated.
struct LayerQueries {
  int layer = 0;
  std::span<const float> q;                      // [T] rows of [heads * head_dim]
  std::ptrdiff_t stride = 0;                     // from row to row
  const kernels::RotaryTable* rotary = nullptr;  // row t: by the position of token t
};

// A look inside a forward pass, for choosing the tokens to compute again and for measuring.
struct ForwardProbe {
  // The pass ends at this layer with its values, fp32 [T, kv_heads * head_dim], and stores nothing:
  // the KV of earlier layers is there already. -1: it runs through and stores as always.
  std::int32_t values_layer = -1;
  std::vector<float> values;
  // [entries] of [tokens of the run]; empty: not wanted. Increased by the probability that the
  // entry's rows give each token, summed over rows, heads and layers. Precondition: no sliding
  // window.
  std::vector<std::span<double>> mass;
  // Called with each layer's queries when its KV is stored; null: not wanted. On the CPU alone.
  const std::function<void(const LayerQueries&)>* queries = nullptr;
};

}  // namespace quire::model
