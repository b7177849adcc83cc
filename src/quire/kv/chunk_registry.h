// ChunkRegistry: named chunks, the segments that hold their KV, and the order in which chunks are
// evicted. It computes nothing: the engine prefills and attaches.
//
// A chunk is registered under an id that covers everything about it (chunk_id.h). The registry is
// one state with three views, each in a header of its own: variants() of KV, usage() and room().
//
// A salt is a tenant, also the empty salt: chunks of two salts never meet. A call with an id that a
// user has given takes the salt too, and finds no chunk of another salt.
//
// Thread rule: one thread, the engine's, owns it, with its ledger.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_room.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/chunk_usage.h"
#include "quire/kv/chunk_variants.h"
#include "quire/kv/ledger.h"
#include "quire/result.h"

namespace quire::kv {

struct RegistryState;

class ChunkRegistry {
 public:
  // Borrows `ledger`, which outlives the registry.
  ChunkRegistry(RegistryConfig config, Ledger& ledger);
  ~ChunkRegistry();
  ChunkRegistry(const ChunkRegistry&) = delete;
  ChunkRegistry& operator=(const ChunkRegistry&) = delete;

  // Returns a view. It is valid as long as the registry.
  [[nodiscard]] ChunkVariants& variants() { return variants_; }
  [[nodiscard]] const ChunkVariants& variants() const { return variants_; }
  [[nodiscard]] ChunkUsage& usage() { return usage_; }
  [[nodiscard]] ChunkRoom& room() { return room_; }
  [[nodiscard]] const ChunkRoom& room() const { return room_; }

  // Finds a listed chunk of any tenant, for ids that come from the registry itself. Removes expired
  // chunks first. Returns nullptr if unknown.
  [[nodiscard]] const Chunk* find(std::string_view id);
  // Finds a chunk among those of a tenant; nullptr when it has none of this id.
  [[nodiscard]] const Chunk* find(std::string_view id, std::string_view salt);
  // Returns the chunk that this text was last registered as, or nullptr. `text_id` (chunk_id.h)
  // names text, type and everything else but the token ids.
  [[nodiscard]] const Chunk* find_text(const std::string& text_id, std::string_view content);
  // Returns a tenant's chunk; kNotFound says how and when it went, if it was the tenant's.
  [[nodiscard]] Result<const Chunk*> get(std::string_view id, std::string_view salt);
  // Lists the chunks of all tenants, in no order.
  [[nodiscard]] std::vector<const Chunk*> list_all();
  // Lists a tenant's chunks in the order of registration.
  [[nodiscard]] std::vector<const Chunk*> list(std::string_view salt);
  // Returns the tenant's system chunk that was registered last, to stay, and is still there; ""
  // without one.
  [[nodiscard]] std::string last_system(std::string_view salt);

  // Begins a chunk: evicts others for it, and sets room aside for `key` (nullopt: it needs no KV).
  // Never evicts the chunk that `key` stands behind. Fails as ChunkRoom::make_room does. find()
  // does not find the chunk before finish(). With `replaces` it needs no place of its own: the
  // caller removes another chunk of the tenant before it lets others in. Precondition
  // (QUIRE_CHECK): no chunk has this id.
  [[nodiscard]] Result<const Chunk*> begin(NewChunk chunk, const std::optional<VariantKey>& key,
                                           bool replaces = false);
  // Lists a chunk, whose registration has ended well, unless it is listed. Keeps the error of the
  // KV that was computed for it, unless one is known.
  void finish(std::string_view id, const std::optional<KVError>& error = {});
  // Forgets a chunk that was begun, is not listed and has no KV, now or soon. No effect on other
  // chunks.
  void give_up(std::string_view id);

  // Registers an equal chunk again, which is a use and a hit. Its metadata gets the keys of
  // `chunk`; a pin, a TTL or a priority other than 0 replaces the old one. Returns true if any of
  // these changed. Precondition: find(chunk.id).
  bool merge(const NewChunk& chunk);
  // Returns the chunk as update() would leave it. Changes nothing.
  [[nodiscard]] Result<NewChunk> updated(std::string_view id, std::string_view salt,
                                         const ChunkUpdate& update);
  [[nodiscard]] Result<const Chunk*> update(std::string_view id, std::string_view salt,
                                            const ChunkUpdate& update);

  // Forgets the chunk. Its blocks return when no sequence uses them. Blocks of an evicted chunk
  // that are in the prefix cache stay there. Returns false if unknown.
  bool remove(std::string_view id, Removal reason);
  // Removes the tenant's listed chunks that no request uses, pinned ones too. Returns how many.
  std::int64_t clear(std::string_view salt, std::optional<ChunkType> type);
  // Removes the tenant's evictable chunks without access for `max_age_seconds`. Returns how many.
  std::int64_t evict_unused(std::string_view salt, double max_age_seconds);

  // Returns what became of a tenant's chunk that is not there: "never registered" if nothing is
  // known, also for chunks of other tenants.
  [[nodiscard]] std::string fate(std::string_view id, std::string_view salt) const;
  [[nodiscard]] RegistryCounts counts(std::string_view salt) const;
  // Returns the sums of the counts of all tenants.
  [[nodiscard]] RegistryCounts total_counts() const;
  // Returns kInternal that names the first broken invariant. For tests.
  [[nodiscard]] Status check() const;

 private:
  std::unique_ptr<RegistryState> state_;
  ChunkVariants variants_;
  ChunkUsage usage_;
  ChunkRoom room_;
};

}  // namespace quire::kv
