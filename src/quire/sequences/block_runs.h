// BlockRuns: what handles of blocks stand for.
//
// Thread rule: the engine thread, but for chunk_run() and find_runs(): any thread but the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/kv/chunk_types.h"
#include "quire/result.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/known_states.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::chunks {
class ChunkService;
}  // namespace quire::chunks

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::sequences {

using SegmentUses = std::vector<kv::SegmentUse>;

// Returns the run of all tokens of a state, or of a held segment. Any thread.
[[nodiscard]] BlockRun run_of(const StateRef& state);
[[nodiscard]] BlockRun run_of(const tiers::HeldRef& segment);

class BlockRuns {
 public:
  // Borrows all three.
  BlockRuns(engine::Engine& engine, chunks::ChunkService& chunks, KnownStates& states)
      : engine_(engine), chunks_(chunks), states_(states) {}

  // Returns the KV of a tenant's chunk; no key: that which it was registered with. kNotFound,
  // kInvalidComposition for one without.
  [[nodiscard]] Result<BlockRun> chunk_run(const std::string& chunk_id, const std::string& salt,
                                           const std::optional<kv::VariantKey>& key = {});
  // Finds what plain block ids mean: the chunks and states of the tenant that consist of exactly
  // these blocks and `tokens` tokens. kInvalidComposition when there is none, whoever else has
  // them, or when it could mean several things.
  [[nodiscard]] Result<std::vector<BlockRun>> find_runs(std::span<const std::int32_t> blocks,
                                                        std::int64_t tokens,
                                                        const std::string& salt);

  // Returns the tokens of a run, or kInvalidComposition when what it names has gone.
  [[nodiscard]] Result<std::vector<TokenId>> tokens_of(const BlockRun& run) const;
  // Returns where the run's KV is. States are named as segments for it, which go to `named`.
  [[nodiscard]] Result<SegmentUses> segments_of(const BlockRun& run, SegmentUses& named) const;

 private:
  // Returns everything of a tenant that has blocks of its own.
  [[nodiscard]] std::vector<BlockRun> known_runs(const std::string& salt) const;

  engine::Engine& engine_;
  chunks::ChunkService& chunks_;
  KnownStates& states_;
};

}  // namespace quire::sequences
