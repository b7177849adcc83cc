// Chunks that are there: what is said of them, and how they go.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/iso_time.h"
#include "quire/base/str.h"
#include "quire/chunks.h"
#include "quire/chunks/chunk_service.h"
#include "quire/chunks/chunk_store.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::chunks {

bool ChunkService::owns(kv::SegmentId segment) const {
  return registry_.owns(segment) ||
         std::ranges::any_of(bos_, [&](const auto& bos) { return bos.second == segment; });
}

void ChunkService::release_now(std::span<Registered> registered) {
  for (Registered& chunk : registered) {
    if (chunk.hold) {
      registry_.release(*chunk.hold);
      chunk.hold.reset();
    }
  }
}

void ChunkService::release(std::vector<Registered> registered) {
  const auto held = std::make_shared<std::vector<Registered>>(std::move(registered));
  try {
    engine_.thread().post([this, held] { release_now(*held); });
  } catch (const std::bad_alloc&) {
    engine_.thread().call_surely([&] { release_now(*held); });
  }
}

// A temporary chunk goes with the last call that holds it, whoever created it.
void ChunkService::withdraw(Taken taken) {
  writes_.wait();
  engine_.thread().call_surely([&] {
    release_now(taken.registered);
    std::set<std::string> salts;
    for (const Registered& registered : taken.registered) {
      const kv::Chunk* chunk = registry_.find(registered.id);
      const std::string salt = chunk == nullptr ? std::string() : chunk->salt;
      salts.insert(salt);
      const auto own = std::ranges::count_if(taken.registered, [&](const Registered& equal) {
        return equal.used && equal.id == registered.id;
      });
      if (chunk != nullptr && chunk->holders == 0 &&
          (chunk->temporary || (registered.created && chunk->accesses == own))) {
        registry_.remove(registered.id, kv::Removal::kDeleted);
        [[maybe_unused]] const auto saved =
            store_ == nullptr ? Result<bool>(false) : store_->remove(registered.id, salt);
      }
    }
    for (const Name& name : taken.computed) {
      const kv::Chunk* chunk = registry_.find(name.first);
      salts.insert(chunk == nullptr ? std::string() : chunk->salt);
      if (chunk != nullptr && chunk->holders == 0) {
        registry_.drop_variant(name);
      }
    }
    std::ranges::for_each(salts, [this](const std::string& salt) { drop_unused_bos(salt); });
    engine_.publish_stats();
  });
}

// KV of a BOS token that no KV of the tenant's chunks stands behind.
void ChunkService::drop_unused_bos(const std::string& salt) {
  const auto bos = bos_.find(salt);
  if (bos != bos_.end() && !registry_.stands_behind(kv::kBosVariant, salt)) {
    ledger().drop_segment(bos->second);
    bos_.erase(bos);
  }
}

ChunkInfo ChunkService::info_of(const kv::Chunk& chunk) const {
  return {.chunk_id = chunk.id,
          .type = chunk.type,
          .content = chunk.content,
          .token_ids = *chunk.tokens,
          .metadata_json = chunk.metadata_json,
          .created_at = base::iso_utc(chunk.created),
          .last_accessed = base::iso_utc(chunk.accessed),
          .access_count = chunk.accesses,
          .ttl_seconds = chunk.ttl_seconds,
          .pinned = chunk.pinned,
          .priority = chunk.priority,
          .anchor = chunk.anchor,
          .num_variants = std::ssize(chunk.variants),
          .memory_bytes = registry_.blocks_of(chunk) * engine_.core().counters.block_bytes};
}

// The store comes first: what cannot be changed there is not changed.
Result<ChunkInfo> ChunkService::update_known(const std::string& id, const std::string& salt,
                                             const ChunkUpdate& update) {
  QUIRE_TRY_STATUS(adopt(id, salt));
  QUIRE_TRY(const kv::NewChunk changed, registry_.updated(id, salt, update));
  const Status saved = store_ == nullptr ? Status() : store_->update(changed, update.pinned);
  if (!saved.ok()) {
    return saved.error();
  }
  QUIRE_TRY(const kv::Chunk* chunk, registry_.update(id, salt, update));
  return info_of(*chunk);
}

Result<ChunkInfo> ChunkService::update(const std::string& id, const ChunkUpdate& update,
                                       const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = engine_.salt_of(asked);
  writes_.wait();
  QUIRE_TRY(ChunkInfo info, engine_.thread().ask_for_blocks<ChunkInfo>(
                                [&] { return update_known(id, salt, update); }));
  if (is_lost(id, salt)) {
    QUIRE_TRY_STATUS(save(id, salt));
  }
  note_saved(info, salt);
  return info;
}

Result<bool> ChunkService::remove(const std::string& id, bool wipe, const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = engine_.salt_of(asked);
  writes_.wait();
  return engine_.thread().ask<bool>([&]() -> Result<bool> {
    bool saved = false;  // first: what cannot be deleted there is not deleted
    if (store_ != nullptr) {
      QUIRE_TRY(saved, store_->remove(id, salt, wipe));
    }
    const bool removed =
        registry_.find(id, salt) != nullptr && registry_.remove(id, kv::Removal::kDeleted);
    drop_unused_bos(salt);
    return removed || saved;
  });
}

Result<std::int64_t> ChunkService::evict_unused(double max_age_seconds, const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = engine_.salt_of(asked);
  if (!(max_age_seconds >= 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_age_seconds is ", max_age_seconds, "; give 0 or more")};
  }
  return engine_.thread().ask<std::int64_t>([&]() -> Result<std::int64_t> {
    const std::int64_t evicted = registry_.evict_unused(salt, max_age_seconds);
    drop_unused_bos(salt);
    return evicted;
  });
}

Result<ChunkStats> ChunkService::stats(const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = engine_.salt_of(asked);
  return engine_.thread().ask<ChunkStats>([&]() -> Result<ChunkStats> {
    ChunkStats stats;
    for (const kv::Chunk* chunk : registry_.list(salt)) {
      ++stats.total_chunks;
      ++(chunk->type == ChunkType::kSystemPrompt ? stats.system_chunks
         : chunk->type == ChunkType::kContext    ? stats.context_chunks
                                                 : stats.query_chunks);
    }
    const kv::RegistryCounts counts = registry_.counts(salt);
    const std::int64_t block_bytes = engine_.core().counters.block_bytes;
    stats.memory_used_bytes = counts.blocks * block_bytes;
    stats.memory_limit_bytes = registry_.max_blocks() * block_bytes;
    stats.cache_hits = counts.hits;
    stats.cache_misses = counts.misses;
    stats.evictions = counts.evictions;
    return stats;
  });
}

}  // namespace quire::chunks
