// ChunkStore: registered chunks on disk, so that later processes find them without a prefill.
//
// Thread rule: any thread; calls wait for each other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "quire/chunks.h"
#include "quire/engine/block_run.h"
#include "quire/engine/tier_service.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv_store/entry.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store.h"
#include "quire/result.h"

namespace quire::engine {

class ChunkStore {
 public:
  // `model`: ChunkSetup::model_digest; chunks of other models are not seen. `tenant`: the salt.
  // The limit and whether KV is compressed: kv_store::StoreOptions.
  [[nodiscard]] static Result<std::unique_ptr<ChunkStore>> open(const std::string& folder,
                                                                std::string model,
                                                                std::string tenant,
                                                                kv_store::StoreOptions options);

  // Writes the chunk, and the KV that it was registered with (nullptr: it has none). Replaces what
  // is there.
  [[nodiscard]] Status put(const kv::NewChunk& chunk, const HeldRef& segment,
                           const TierService& tiers);
  // The same for what may change of it. Nothing when it is not there.
  [[nodiscard]] Status update(const kv::NewChunk& chunk);
  // A damaged or foreign entry is none.
  [[nodiscard]] std::optional<kv::Chunk> find(const std::string& id);
  [[nodiscard]] std::vector<kv::Chunk> list();
  // Of one that was found. The caller compares the tokens.
  [[nodiscard]] Result<kv_store::KVFile> open_kv(const std::string& id);
  // Whether it was there. `wipe`: its bytes become zeros first.
  [[nodiscard]] bool remove(const std::string& id, bool wipe = false);

 private:
  ChunkStore(kv_store::Store store, std::string model, std::string tenant)
      : store_(std::move(store)), model_(std::move(model)), tenant_(std::move(tenant)) {}
  [[nodiscard]] kv_store::Entry entry_of(const kv::NewChunk& chunk) const;
  [[nodiscard]] std::optional<kv::Chunk> parse(const kv_store::Entry& entry) const;

  std::mutex mutex_;
  kv_store::Store store_;
  std::string model_, tenant_;
};

}  // namespace quire::engine
