// What a saved sequence says besides the tokens with KV: in a file of its own (tier_service) and in
// a checkpoint (checkpoints) alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/kv_fingerprint.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

struct SavedState {
  std::vector<kv::MergeRank> ranks;       // of the runs before the sequence's own one
  std::vector<std::int32_t> stored_from;  // of the same runs, see kv::RunView
  std::int32_t own_position = 0;
  std::vector<TokenId> tail;  // the last token of a sequence that has one: it has no KV
  std::int32_t sampled = 0;
  ReuseGrade grade = ReuseGrade::kExact;
  std::string kernels;  // that computed the KV
};

// Of this machine and version: the instruction set, and a number that grows when its arithmetic
// does something else.
[[nodiscard]] std::string kernels_here();

// Identity of everything that decides the bits of KV besides the tokens before it. `kernels` is
// empty for what names them in its SavedState, and is graded by them instead of refused.
[[nodiscard]] base::KVFingerprint kv_fingerprint(std::string_view model_digest,
                                                 std::string_view kernels);

[[nodiscard]] std::string to_json(const SavedState& state);
// The reading side, for a sequence of `num_runs` runs with KV. Who wrote it is not known, so every
// number is checked; kCorrupt names `what`.
[[nodiscard]] Result<SavedState> parse_saved_state(std::string_view json, std::size_t num_runs,
                                                   std::string_view what);

// KV that is not what this machine would compute must not get into the prefix cache, where plain
// prompts find it: it becomes a run before the sequence's own one, and the grade says so. One with
// lost blocks stays the own run, which alone may have them (TierService::make_room).
// `kernels`: those that would compute it here.
void seal_foreign(std::span<const kv_store::SavedRun> runs, SavedState& state,
                  std::string_view kernels);

}  // namespace quire::engine
