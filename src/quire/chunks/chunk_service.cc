#include "quire/chunks/chunk_service.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/base/iso_time.h"
#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/narrowing.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

namespace {

bool holds_pairs(base::JsonView metadata, base::JsonView pairs) {
  return std::ranges::all_of(pairs.members(), [&](const base::JsonMember& pair) {
    return metadata.contains(pair.key) && metadata.find(pair.key) == pair.value;
  });
}

}  // namespace

ChunkService::ChunkService(engine::Engine& engine, tiers::TierService& tiers,
                           const ChunkCacheOptions& options)
    : core_(engine, tiers, options,
            [this](std::string_view id, std::string_view salt) {
              return library_.why_not_found(id, salt);
            }),
      prefills_(core_),
      library_(core_, prefills_),
      drafts_(core_, prefills_, library_),
      registrar_({.core = core_, .prefills = prefills_, .library = library_, .drafts = drafts_}),
      planner_(core_),
      preview_(core_, prefills_, library_, planner_),
      composer_(core_, prefills_, library_, planner_, preview_) {}

Result<ChunkInfo> ChunkService::get(const std::string& id, const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  QUIRE_TRY(ChunkInfo info, core_.engine.thread().ask<ChunkInfo>([&]() -> Result<ChunkInfo> {
    const auto chunk = core_.registry.get(id, salt);
    if (!chunk.ok()) {
      if (const auto saved = library_.find(id, salt)) {
        return info_of(*saved);
      }
    }
    return chunk.ok() ? Result<ChunkInfo>(info_of(**chunk)) : chunk.error();
  }));
  library_.note_saved(info, salt);
  return info;
}

Result<std::vector<ChunkInfo>> ChunkService::list(std::optional<ChunkType> type,
                                                  std::string_view metadata_filter_json,
                                                  const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  QUIRE_TRY(const auto pairs, base::parse_kept_object(metadata_filter_json, "metadata_filter"));
  using Dated = std::vector<std::pair<kv::WallClock::time_point, ChunkInfo>>;
  QUIRE_TRY(Dated dated, core_.engine.thread().ask<Dated>([&]() -> Result<Dated> {
    Dated all;
    for (const kv::Chunk* chunk : core_.registry.list(salt)) {
      all.emplace_back(chunk->created, info_of(*chunk));
    }
    return all;
  }));
  std::unordered_map<std::string, ChunkInfo*> known;
  for (auto& [created, info] : dated) {
    known.emplace(info.chunk_id, &info);
  }
  Dated only_saved;
  for (const kv::Chunk& saved : library_.saved_chunks(salt)) {
    const auto found = known.find(saved.id);
    ChunkInfo& info = found != known.end()
                          ? *found->second
                          : only_saved.emplace_back(saved.created, info_of(saved)).second;
    info.saved = true;
    info.pinned = info.pinned || saved.pinned;
  }
  std::ranges::move(only_saved, std::back_inserter(dated));
  if (library_.has_store()) {  // else they are in order already, even if the clock was set
    std::ranges::stable_sort(dated, {}, &Dated::value_type::first);
  }
  std::vector<ChunkInfo> infos;
  for (auto& [created, info] : dated) {
    infos.push_back(std::move(info));
  }
  std::erase_if(infos, [&](const ChunkInfo& info) {
    const auto metadata = base::parse_json(info.metadata_json, "metadata");
    return (type && info.type != *type) || !metadata.ok() || !holds_pairs(*metadata, pairs);
  });
  return infos;
}

Result<std::int64_t> ChunkService::clear(std::optional<ChunkType> type, const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  library_.writes().wait();
  return core_.engine.thread().ask<std::int64_t>([&]() -> Result<std::int64_t> {
    const auto is_meant = [&](const kv::Chunk& saved) { return !type || saved.type == *type; };
    const Status writable = library_.check_writable();
    if (!writable.ok() && std::ranges::any_of(library_.saved_chunks(salt), is_meant)) {
      return writable.error();  // nothing is removed: a part would be gone in this process alone
    }
    std::unordered_set<std::string> registered;
    for (const kv::Chunk* chunk : core_.registry.list(salt)) {
      registered.insert(chunk->id);
    }
    std::int64_t cleared = core_.registry.clear(salt, type);
    forget_dropped(salt);
    for (const kv::Chunk& saved : library_.saved_chunks(salt)) {
      if (!is_meant(saved) || core_.registry.find(saved.id) != nullptr) {
        continue;  // a chunk of another type, or in use
      }
      QUIRE_TRY(const bool removed, library_.remove(saved.id, salt));
      cleared += removed && !registered.contains(saved.id) ? 1 : 0;  // on disk alone
    }
    return cleared;
  });
}

ChunkInfo ChunkService::info_of(const kv::Chunk& chunk) const {
  std::int64_t hidden_bytes = 0;
  for (const auto& [key, segment] : chunk.variants) {
    hidden_bytes += core_.hidden.bytes(segment);
  }
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
          .memory_bytes = core_.registry.room().bytes_of(chunk) + hidden_bytes,
          .keep_hidden = chunk.keep_hidden,
          .kv_dtype = core_.kv_name(chunk.format),
          .kv_error = chunk.kv_error};
}

// Updates a known chunk, in the store first: a change that the store refuses is not made.
Result<ChunkInfo> ChunkService::update_known(const std::string& id, const std::string& salt,
                                             const ChunkUpdate& update) {
  QUIRE_TRY_STATUS(library_.adopt(id, salt));
  QUIRE_TRY(const kv::NewChunk changed, core_.registry.updated(id, salt, update));
  QUIRE_TRY(const auto narrower, narrower_format(core_, changed, update.kv_dtype));
  if (narrower) {
    return narrow_known(id, changed, *narrower);
  }
  const Status saved = library_.update(changed, update.pinned);
  if (!saved.ok()) {
    return saved.error();
  }
  QUIRE_TRY(const kv::Chunk* chunk, core_.registry.update(id, salt, update));
  return info_of(*chunk);
}

// Replaces a chunk by itself in another format. A chunk that the store does not delete stays as it
// is.
Result<ChunkInfo> ChunkService::narrow_known(const std::string& id, const kv::NewChunk& changed,
                                             kv::FormatId to) {
  QUIRE_TRY_STATUS(library_.check_writable());
  const std::string narrowed = kv::narrowed_id(id, core_.kv_name(to));
  const bool is_new = core_.registry.find(narrowed, changed.salt) == nullptr;
  QUIRE_TRY(const kv::Chunk* chunk, narrow(core_, id, changed, to));
  ChunkInfo info = info_of(*chunk);
  const auto removed = library_.remove(id, changed.salt);
  if (!removed.ok()) {
    if (is_new) {
      core_.registry.remove(narrowed, kv::Removal::kDeleted);
    }
    return removed.error();
  }
  core_.registry.remove(id, kv::Removal::kDeleted);
  return info;
}

Result<ChunkInfo> ChunkService::update(const std::string& id, const ChunkUpdate& update,
                                       const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  library_.writes().wait();
  QUIRE_TRY(ChunkInfo info, core_.engine.thread().ask_for_blocks<ChunkInfo>(
                                [&] { return update_known(id, salt, update); }));
  if (library_.is_lost(info.chunk_id, salt)) {
    QUIRE_TRY_STATUS(library_.save(info.chunk_id, salt));
  }
  library_.note_saved(info, salt);
  return info;
}

Result<bool> ChunkService::remove(const std::string& id, bool wipe, const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  library_.writes().wait();
  return core_.engine.thread().ask<bool>([&]() -> Result<bool> {
    // First: what cannot be deleted there is not deleted.
    QUIRE_TRY(const bool saved, library_.remove(id, salt, wipe));
    const bool removed = core_.registry.find(id, salt) != nullptr &&
                         core_.registry.remove(id, kv::Removal::kDeleted);
    forget_dropped(salt);
    return removed || saved;
  });
}

Result<std::int64_t> ChunkService::evict_unused(double max_age_seconds, const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  if (!(max_age_seconds >= 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_age_seconds is ", max_age_seconds, "; give 0 or more")};
  }
  return core_.engine.thread().ask<std::int64_t>([&]() -> Result<std::int64_t> {
    const std::int64_t evicted = core_.registry.evict_unused(salt, max_age_seconds);
    forget_dropped(salt);
    return evicted;
  });
}

Result<std::int64_t> ChunkService::coalesce() {
  return core_.engine.thread().ask<std::int64_t>([&] { return core_.coalesce(); });
}

// Gives back what stood with chunks that have gone.
void ChunkService::forget_dropped(const std::string& salt) {
  prefills_.drop_unused_bos(salt);
  core_.hidden.forget_dropped(core_.ledger().segments());
}

ChunkStats ChunkService::stats_of(std::span<const kv::Chunk* const> chunks,
                                  const kv::RegistryCounts& counts) const {
  ChunkStats stats;
  for (const kv::Chunk* chunk : chunks) {
    ++stats.total_chunks;
    ++(chunk->type == ChunkType::kSystemPrompt ? stats.system_chunks
       : chunk->type == ChunkType::kContext    ? stats.context_chunks
                                               : stats.query_chunks);
  }
  stats.memory_used_bytes = counts.bytes;
  stats.memory_limit_bytes = core_.registry.room().max_bytes();
  stats.cache_hits = counts.hits;
  stats.cache_misses = counts.misses;
  stats.evictions = counts.evictions;
  return stats;
}

Result<ChunkStats> ChunkService::stats(const std::string& asked) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", asked));
  const std::string& salt = core_.engine.salt_of(asked);
  return core_.engine.thread().ask<ChunkStats>([&]() -> Result<ChunkStats> {
    return stats_of(core_.registry.list(salt), core_.registry.counts(salt));
  });
}

Result<ChunkStats> ChunkService::totals() {
  return core_.engine.thread().ask<ChunkStats>([&]() -> Result<ChunkStats> {
    return stats_of(core_.registry.list_all(), core_.registry.total_counts());
  });
}

Status ChunkService::check(std::span<const ChunkContent> chunks, const ComposedRun& run) {
  QUIRE_TRY([[maybe_unused]] const std::string salt, planner_.salt_of(run));
  QUIRE_TRY_STATUS(core_.engine.check(*run.params));
  std::vector<ChunkDraft> drafts;
  for (const ChunkContent& content : chunks) {
    QUIRE_TRY(drafts.emplace_back(), drafts_.make(content));
  }
  QUIRE_TRY_STATUS(drafts_.name_drafts(drafts));
  CompositionSpec spec = *run.spec;
  spec.system_chunk_id.clear();
  spec.context_chunk_ids.clear();
  std::map<std::string, kv::Chunk> found;
  for (const ChunkDraft& draft : drafts) {
    const std::string& id = draft.chunk.id;
    found.emplace(id, kv::Chunk{draft.chunk});
    if (draft.chunk.type == ChunkType::kContext) {
      spec.context_chunk_ids.push_back(id);
    } else {
      (draft.chunk.type == ChunkType::kQuery ? spec.query_chunk_id : spec.system_chunk_id) = id;
    }
  }
  const auto find = [&](const std::string& id) -> Result<const kv::Chunk*> {
    return &found.at(id);
  };
  QUIRE_TRY_STATUS(core_.check_mode(spec));
  QUIRE_TRY(const auto composition, kv::resolve(find, spec, core_.model_shape()));
  QUIRE_TRY_STATUS(planner_.check_positions(composition));
  Status fits;
  QUIRE_TRY_STATUS(core_.engine.thread().call([&] {
    std::int64_t bytes = 0;
    for (const auto& [id, chunk] : found) {
      bytes += core_.needs_kv(chunk) ? core_.registry.room().bytes_for(chunk) : 0;
    }
    fits = core_.registry.room().check_size(std::ssize(found), bytes);
    fits = fits.ok() ? planner_.check_fits(run, composition) : fits;
  }));
  return fits.ok() ? drafts_.check_room(drafts) : fits;
}

}  // namespace quire::chunks
