// ChunkService: the verbs of chunks. Callers' threads turn text into tokens and wait; the registry,
// and everything that changes it, lives on the engine thread.
//
// Its parts check and tokenize drafts (chunk_drafts.h), register them (chunk_registrar.h) and
// prefill them (chunk_prefills.h). Others preview a composition (composition_preview.h), plan it
// (composition_planner.h) and start it (composer.h). chunk_library.h is the store.
//
// A salt that is asked for is the tenant's; an empty one is ChunkCacheOptions::salt. The chunks of
// one tenant do not exist for another.
//
// Thread rule: every public function may be called from any thread but the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/chunk_registrar.h"
#include "quire/chunks/composer.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/composition_preview.h"
#include "quire/engine/channel.h"
#include "quire/engine/hooks.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {
class TierService;
}  // namespace quire::tiers

namespace quire::chunks {

class ChunkService final : public engine::BlockHolders {
 public:
  // Borrows `engine` and `tiers`, which must outlive the service.
  ChunkService(engine::Engine& engine, tiers::TierService& tiers, const ChunkCacheOptions& options);

  // Encodes the text of a chunk. The next calls register and release chunks.
  [[nodiscard]] Result<std::vector<TokenId>> encode(ChunkType type, std::string_view text) const {
    return drafts_.encode(type, text);
  }
  [[nodiscard]] Result<std::vector<RegisteredChunk>> register_chunks(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted, RegistrationRules how) {
    return registrar_.register_chunks(chunks, interrupted, std::move(how));
  }
  void release(std::vector<RegisteredChunk> registered) {
    registrar_.release(std::move(registered));
  }
  void withdraw(TakenChunks taken) { registrar_.withdraw(std::move(taken)); }

  // Returns a chunk that is there. The next calls list, change and remove such chunks.
  [[nodiscard]] Result<ChunkInfo> get(const std::string& id, const std::string& salt);
  [[nodiscard]] Result<std::vector<ChunkInfo>> list(std::optional<ChunkType> type,
                                                    std::string_view metadata_filter_json,
                                                    const std::string& salt);
  [[nodiscard]] Result<ChunkInfo> update(const std::string& id, const ChunkUpdate& update,
                                         const std::string& salt);
  [[nodiscard]] Result<bool> remove(const std::string& id, bool wipe, const std::string& salt);
  [[nodiscard]] Result<std::int64_t> clear(std::optional<ChunkType> type, const std::string& salt);
  [[nodiscard]] Result<std::int64_t> evict_unused(double max_age_seconds, const std::string& salt);
  // Lets the last tokens of chunks that nobody uses share blocks. Returns how many became free.
  [[nodiscard]] Result<std::int64_t> coalesce();
  [[nodiscard]] Result<ChunkStats> stats(const std::string& salt);
  // Returns the statistics of all tenants together.
  [[nodiscard]] Result<ChunkStats> totals();

  // Says what composing would reuse and compute. The next calls compose.
  [[nodiscard]] Result<CompositionInfo> preview(const CompositionSpec& spec) {
    return preview_.preview(spec);
  }
  [[nodiscard]] bool retokenizes_alike(const CompositionInfo& info) {
    return preview_.retokenizes_alike(info);
  }
  [[nodiscard]] Result<std::string> salt_of(const ComposedRun& run) const {
    return planner_.salt_of(run);
  }
  // Returns what register_chunks() of `chunks`, system and query included, and then submit() of
  // `run` would refuse now. The spec's ids are not read.
  [[nodiscard]] Status check(std::span<const ChunkContent> chunks, const ComposedRun& run);
  [[nodiscard]] Result<std::vector<std::shared_ptr<engine::Channel>>> submit(
      std::span<const ComposedRun> runs, const Interrupt& interrupted,
      std::vector<kv::VariantName>* computed = nullptr) {
    return composer_.submit(runs, interrupted, computed);
  }

  [[nodiscard]] ChunkLibrary& library() { return library_; }
  [[nodiscard]] const ChunkCore& core() const { return core_; }

  // Returns the registry. Engine thread, as for adopt().
  [[nodiscard]] kv::ChunkRegistry& registry() { return core_.registry; }
  // Brings a tenant's saved chunk into the registry. Its KV has been read when it returns.
  [[nodiscard]] Status adopt(const std::string& id, const std::string& salt) {
    return library_.adopt(id, salt);
  }

 private:
  // Implements engine::BlockHolders, as the next functions do.
  [[nodiscard]] bool owns(kv::SegmentId segment) const override {
    return core_.registry.variants().owns(segment) || prefills_.owns(segment);
  }
  [[nodiscard]] bool await_blocks() override { return library_.writes().wait_one(); }
  std::int32_t coalesce(std::int32_t most_moves) override {
    return core_.registry.room().coalesce(most_moves);
  }
  void copies_failed() override { core_.registry.room().forget_moved(); }
  void session_closed(kv::SessionRef session) override {
    core_.registry.usage().close_session(session);
  }
  void session_forgotten(kv::SessionRef session) override {
    core_.registry.usage().forget_session(session);
  }

  // Returns the statistics of some chunks. Engine thread, as for the next functions.
  [[nodiscard]] ChunkStats stats_of(std::span<const kv::Chunk* const> chunks,
                                    const kv::RegistryCounts& counts) const;
  [[nodiscard]] ChunkInfo info_of(const kv::Chunk& chunk) const;
  void forget_dropped(const std::string& salt);
  [[nodiscard]] Result<ChunkInfo> update_known(const std::string& id, const std::string& salt,
                                               const ChunkUpdate& update);
  [[nodiscard]] Result<ChunkInfo> narrow_known(const std::string& id, const kv::NewChunk& changed,
                                               kv::FormatId to);

  ChunkCore core_;
  ChunkPrefills prefills_;
  ChunkLibrary library_;
  ChunkDrafts drafts_;
  ChunkRegistrar registrar_;
  CompositionPlanner planner_;
  CompositionPreview preview_;
  Composer composer_;
};

}  // namespace quire::chunks
