// SavedState: the part of a saved sequence beside its tokens with KV, alike in a file of its own
// and in a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/kv/types.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::sequences {

struct SavedState {
  std::vector<kv::MergeRank> ranks;       // ranks of the runs before the sequence's own one
  std::vector<std::int32_t> stored_from;  // first stored tokens of the same runs, see kv::RunView
  std::int32_t own_position = 0;
  // The number of saved runs of each run, the own one last. One more is there where a last block
  // that is not full has another format than the blocks before it, and one for maps. Empty: 1 of
  // each.
  std::vector<std::int32_t> parts = {};
  // The blocks with maps on states of the runs before the own one (docs/adr/0048), which are the
  // last saved run of each. Its tokens are zeros. Empty for a model without states.
  std::vector<std::int32_t> map_blocks = {};
  // The last token of a sequence that has one: it has no KV. Where KV is stored block by block,
  // there may be a block of such tokens.
  std::vector<TokenId> tail;
  std::int32_t sampled = 0;
  ReuseGrade grade = ReuseGrade::kExact;
  std::string kernels;  // kernels that computed the KV
  // Format of the sequence's own KV where some KV has another one, or may have: where its own is
  // stored block by block. Else empty.
  std::string kv_dtype = {};
};

[[nodiscard]] std::string to_json(const SavedState& state);
// Returns the saved runs of each run of the sequence, without those with maps.
[[nodiscard]] std::vector<std::span<const kv_store::SavedRun>> parts_of(
    std::span<const kv_store::SavedRun> runs, const SavedState& state);
// Returns the saved run with the maps of the sequence's run `index`, which has some.
[[nodiscard]] const kv_store::SavedRun& maps_of(std::span<const kv_store::SavedRun> runs,
                                                const SavedState& state, std::size_t index);
// Reads the state of a sequence of `num_runs` saved runs. Its writer is unknown, so every number is
// checked; kCorrupt names `what`.
[[nodiscard]] Result<SavedState> parse_saved_state(std::string_view json, std::size_t num_runs,
                                                   std::string_view what);

// Makes KV that this machine would compute otherwise a run before the sequence's own one. It must
// not get into the prefix cache, where plain prompts find it, and the grade says so. One with lost
// blocks stays the own run, which alone may have them (TierService::make_room). `kernels` are those
// that would compute it here. With `has_states` the run stays the own one, too: its state cannot
// stand before another run's.
void seal_foreign(std::span<const kv_store::SavedRun> runs, SavedState& state,
                  std::string_view kernels, bool has_states = false);

}  // namespace quire::sequences
