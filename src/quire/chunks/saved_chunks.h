// SavedChunks: registered chunks in a store, so that later processes find them without a prefill.
//
// Thread rule: any thread; calls wait for each other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "quire/kv/chunk_types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

// The chunks that an engine can read: those of its model in the formats of its pool.
struct ReadableChunks {
  std::string model;                 // Engine::model_digest
  std::vector<std::string> formats;  // kv_dtype of each format, the pool's own first
};

class SavedChunks {
 public:
  // Opens the store in `folder`. Chunks of other models and formats are not seen. The limit and
  // whether KV is compressed: kv_store::StoreOptions.
  [[nodiscard]] static Result<std::unique_ptr<SavedChunks>> open(const std::string& folder,
                                                                 ReadableChunks readable,
                                                                 kv_store::StoreOptions options);

  // Returns kIo naming the store when it is open read-only. Then it can be read, and every change
  // is refused.
  [[nodiscard]] Status check_writable() const { return store_.check_writable(); }

  // Writes the chunk, and the KV that it was registered with (nullptr: it has none), whose object
  // is called as the chunk is. Replaces what is there, but for other KV of the chunk.
  [[nodiscard]] Status put(const kv::NewChunk& chunk, const tiers::HeldRef& segment,
                           const tiers::TierService& tiers);
  // Writes other KV of a chunk, as `object`. Nothing when the chunk is not there.
  [[nodiscard]] Status put_variant(const std::string& id, const std::string& tenant,
                                   const std::string& object, const tiers::HeldRef& segment,
                                   const tiers::TierService& tiers);
  // Writes what may change of a chunk. Without `pinned` a pin of another process stays. Does
  // nothing when the chunk is not there, or is so already.
  [[nodiscard]] Status update(const kv::NewChunk& chunk, std::optional<bool> pinned = {});
  // Returns whether a chunk of this id is there. Cost: the same for all lengths.
  [[nodiscard]] bool has(const std::string& id, const std::string& tenant);
  // Finds a chunk. A damaged or foreign entry counts as none.
  [[nodiscard]] std::optional<kv::Chunk> find(const std::string& id, const std::string& tenant);
  // Says why a chunk that the store has is not found. Returns "" where it has none. `here` is the
  // geometry of KV that can be read.
  [[nodiscard]] std::string why_not_found(const std::string& id, const std::string& tenant,
                                          const tensor::KVGeometry& here);
  [[nodiscard]] std::vector<kv::Chunk> list(const std::string& tenant);
  // Opens KV of a chunk, if it has some of this name. The caller compares the tokens.
  [[nodiscard]] Result<kv_store::KVFile> open_kv(const std::string& object);
  [[nodiscard]] bool has_kv(const std::string& id, const std::string& tenant,
                            const std::string& object);
  // Returns whether it was there. `wipe`: its bytes become zeros first.
  [[nodiscard]] Result<bool> remove(const std::string& id, const std::string& tenant,
                                    bool wipe = false);

 private:
  SavedChunks(kv_store::Store store, ReadableChunks readable)
      : store_(std::move(store)), readable_(std::move(readable)) {}
  [[nodiscard]] Status put_once(const kv::NewChunk& chunk, const tiers::HeldRef& segment,
                                const tiers::TierService& tiers);
  // Returns the entry to put, with age, pin and KV of the known one (nullptr: none).
  [[nodiscard]] kv_store::StoreEntry entry_of(const kv::NewChunk& chunk,
                                              const kv_store::StoreEntry* known) const;
  [[nodiscard]] std::optional<kv::Chunk> parse(const kv_store::StoreEntry& entry) const;
  // Writes KV as `object`, and returns its part of an entry. Call it and find_entry with the lock
  // held. find_entry returns nothing without a chunk.
  [[nodiscard]] Result<kv_store::ObjectRange> write_object(const std::string& object,
                                                           const tiers::HeldRef& segment,
                                                           const tiers::TierService& tiers);
  [[nodiscard]] std::optional<kv_store::StoreEntry> find_entry(const std::string& id,
                                                               const std::string& tenant) const;

  std::mutex mutex_;
  kv_store::Store store_;
  const ReadableChunks readable_;
};

}  // namespace quire::chunks
