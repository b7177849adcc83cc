// ChunkLibrary: the chunks of the store, and their way into the registry and back.
//
// Without ChunkCacheOptions::store there is none, and every function does nothing.
//
// Thread rule: the engine thread, unless a function says otherwise.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/background_writes.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/saved_chunks.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/types.h"
#include "quire/kv_store/store_uses.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

using Compositions = std::vector<kv::ResolvedComposition>;

// Saved KV on its way into the registry, in the background.
struct ArrivingVariant {
  kv::VariantName name;
  kv::SegmentId segment;
  tiers::HeldRef kv;
};
struct ReadBehind {
  tiers::TierService::JointRead read;
  std::vector<ArrivingVariant> arriving;
};

class ChunkLibrary {
 public:
  // Borrows both.
  ChunkLibrary(ChunkCore& core, ChunkPrefills& prefills);

  // Opens the store, before anything else.
  [[nodiscard]] Status open();
  // Writes what is left, when the engine's thread has ended.
  void stop();
  [[nodiscard]] bool has_store() const { return saved_ != nullptr; }
  // Returns a name of this engine among those that share the store; "" without one.
  [[nodiscard]] const std::string& nonce() const { return nonce_; }

  // Brings a saved chunk into the registry, with the KV that it was registered with. Where `behind`
  // is null, and for system chunks, KV is read before the call returns. Does nothing for a chunk
  // that is there; damaged or foreign KV is a miss. kOutOfBlocks, kOverflow without room.
  [[nodiscard]] Status adopt(const std::string& id, const std::string& salt,
                             ReadBehind* behind = nullptr);
  // Reads what the compositions lack of saved KV other than what chunks were registered with.
  // Returns whether some was read. Their chunks are held.
  [[nodiscard]] Result<bool> read_variants(const Compositions& compositions, ReadBehind* behind);
  void start_reading(ReadBehind behind);
  // Returns the system chunk that the tenant has registered last: in this process, else before.
  [[nodiscard]] Result<std::string> last_system(const std::string& salt);

  // Finds a chunk in the store. Any thread, as for the next calls, but for saved_chunk().
  [[nodiscard]] std::optional<kv::Chunk> find(const std::string& id,
                                              const std::string& salt) const {
    return has_store() ? saved_->find(id, salt) : std::nullopt;
  }
  // Returns a chunk that is in the store and not in the registry.
  [[nodiscard]] std::optional<kv::Chunk> saved_chunk(const std::string& id,
                                                     const std::string& salt);
  [[nodiscard]] std::vector<kv::Chunk> saved_chunks(const std::string& salt) const;
  // Returns whether the store has this KV of a chunk.
  [[nodiscard]] bool has_kv(const kv::Chunk& chunk, const kv::VariantKey& key) const {
    return has_store() && saved_->has_kv(chunk.id, chunk.salt, object_of(chunk, key));
  }
  // Returns whether saved KV is not read, as computing it is faster. Engine thread.
  [[nodiscard]] bool computes_instead(const kv::VariantName& name) const {
    return not_read_.contains(name);
  }
  // Returns why a chunk of the store is not found; "" where the tenant has none of this id there.
  [[nodiscard]] std::string why_not_found(std::string_view id, std::string_view salt) const;
  [[nodiscard]] Status check_writable() const {
    return has_store() ? saved_->check_writable() : Status();
  }

  // Writes the chunk and its KV, now or behind the call. Like save_registered() and save_variants()
  // it visits the engine's thread, so any thread but that one calls it.
  [[nodiscard]] Status save(const std::string& id, const std::string& salt);
  // Writes what a registration has created (`unsaved`), changed, or found lost.
  [[nodiscard]] Status save_registered(const std::string& id, const std::string& salt, bool unsaved,
                                       bool changed);
  // Lets KV be written that was computed for a composition, whose answer does not wait for it.
  void save_variants(const StartedPrefills& computed);
  [[nodiscard]] Status update(const kv::NewChunk& chunk, std::optional<bool> pinned) {
    return has_store() ? saved_->update(chunk, pinned) : Status();
  }
  [[nodiscard]] Result<bool> remove(const std::string& id, const std::string& salt,
                                    bool wipe = false) {
    return has_store() ? saved_->remove(id, salt, wipe) : Result<bool>(false);
  }
  // Returns whether the store has forgotten a chunk that is there: by its limit, its TTL, or since
  // another process deleted it. Looks at the index, not at the KV.
  [[nodiscard]] bool is_lost(const std::string& id, const std::string& salt);
  // Adds what the store says of a chunk: another process may have pinned it there.
  void note_saved(ChunkInfo& info, const std::string& salt);
  // Notes a use in memory, for the store to know.
  void note_use(const std::string& id, const std::string& salt) const;

  // Returns the chunks that are written behind calls. Any thread but the engine's.
  [[nodiscard]] BackgroundWrites& writes() { return writes_; }

 private:
  [[nodiscard]] bool saves();
  [[nodiscard]] Result<bool> adopt_anchor(std::string_view anchor, const std::string& salt);
  [[nodiscard]] Status adopt_saved(const kv::Chunk& saved, ReadBehind* behind);
  [[nodiscard]] bool reads_next(const kv::VariantName& name);
  [[nodiscard]] Result<bool> read_kv(const kv::NewChunk& chunk, const kv::VariantKey& key,
                                     ReadBehind* behind);
  [[nodiscard]] Result<bool> read_variant(const kv::Part& part, ReadBehind* behind);
  void drop_damaged(tiers::BackgroundLoads::Load& load, std::span<const ArrivingVariant> arriving);
  [[nodiscard]] std::string object_of(const kv::NewChunk& chunk, const kv::VariantKey& key) const;
  [[nodiscard]] Result<kv::SegmentId> load(const kv::NewChunk& chunk, const kv::VariantKey& key,
                                           ReadBehind* behind);
  [[nodiscard]] Result<tiers::HeldRef> hold_kv(const kv::Chunk& chunk, const kv::VariantKey& key);

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  std::unique_ptr<SavedChunks> saved_;    // null without one
  std::unique_ptr<SavedChunks> written_;  // the same store for writes_, so that nobody waits for it
  std::unique_ptr<kv_store::StoreUses> uses_;  // last uses of the same store
  BackgroundWrites writes_;
  std::string nonce_;
  std::set<kv::VariantName>
      not_read_;  // saved variants that are computed, as that is faster. Engine thread
};

}  // namespace quire::chunks
