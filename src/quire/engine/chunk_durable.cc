// Chunks that outlive the process. The rest of ChunkService: chunk_service.cc, chunk_compose.cc.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/chunks.h"
#include "quire/engine/block_run.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/chunk_store.h"
#include "quire/engine/engine.h"
#include "quire/engine/tier_service.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

Status ChunkService::open_store() {
  if (options_.store.empty()) {
    return {};
  }
  // What is written is in the pool already: no second copy of it in the page cache.
  const auto open = [&] {
    return ChunkStore::open(options_.store, setup().model_digest, options_.salt,
                            {.max_bytes = options_.max_store_bytes,
                             .write = {.compress = options_.compress_store, .direct = true}});
  };
  QUIRE_TRY(store_, open());
  if (!options_.write_through) {
    QUIRE_TRY(written_, open());
  }
  return {};
}

// Engine thread. Brings a saved chunk into the registry with the KV that it was registered with;
// without effect for one that is there, or whose KV cannot be had: then it is a miss.
void ChunkService::adopt(const std::string& id) {
  const auto saved = saved_chunk(id);
  if (!saved) {
    return;
  }
  if (!saved->anchor.empty()) {
    const auto anchor = saved_chunk(saved->anchor);
    if (anchor && anchor->type == ChunkType::kSystemPrompt) {
      adopt_saved(*anchor);
    }
    const kv::Chunk* known = registry_.find(saved->anchor);
    if (known == nullptr || known->type != ChunkType::kSystemPrompt) {
      return;
    }
  }
  adopt_saved(*saved);
}

// On disk and not in the registry.
std::optional<kv::Chunk> ChunkService::saved_chunk(const std::string& id) {
  if (store_ == nullptr || id.empty() || registry_.find(id) != nullptr) {
    return std::nullopt;
  }
  auto saved = store_->find(id);
  return saved && engine_.check_prompt(*saved->tokens).ok() ? std::move(saved) : std::nullopt;
}

void ChunkService::adopt_saved(const kv::Chunk& saved) {
  const std::string& id = saved.id;
  const kv::VariantKey key = {.before = saved.anchor};
  if (pending_.contains({id, key})) {
    return;  // somebody computes it
  }
  const bool needs_kv = saved.type != ChunkType::kQuery && !windowed();
  const kv::NewChunk& chunk = saved;
  const auto begin = [&](bool with_kv) {
    return registry_.begin(chunk, with_kv ? std::optional(key) : std::nullopt).ok();
  };
  // A system chunk is listed with KV or not at all: then it is registered anew. The KV of a context
  // is computed where it is used, if that is the faster way.
  const bool reads = saved.type == ChunkType::kSystemPrompt || engine_.tiers().pace().reads_next();
  if (needs_kv && !reads) {
    not_read_.insert(id);
  } else if (needs_kv && begin(true)) {
    const auto segment = load(id, *saved.tokens);
    registry_.count(segment.ok() ? 1 : 0, -1);  // begin counted a miss
    if (segment.ok() && registry_.end(id, key, *segment)) {
      not_read_.erase(id);
      registry_.publish(id);
      return;
    }
    [[maybe_unused]] const bool given_up = registry_.end(id, key, std::nullopt);
  }
  if (saved.type != ChunkType::kSystemPrompt && begin(false)) {
    registry_.publish(id);
  }
}

// Registered last: by this process, else by an earlier one.
std::string ChunkService::last_system() {
  std::string id = registry_.last_system();
  if (!id.empty() || store_ == nullptr) {
    return id;
  }
  kv::WallClock::time_point last;
  for (const kv::Chunk& chunk : store_->list()) {
    if (chunk.type == ChunkType::kSystemPrompt && (id.empty() || chunk.created >= last)) {
      id = chunk.id;
      last = chunk.created;
    }
  }
  adopt(id);
  return registry_.last_system();
}

Result<kv::SegmentId> ChunkService::load(const std::string& id,
                                         const std::vector<TokenId>& tokens) {
  QUIRE_TRY(const kv_store::KVFile file, store_->open_kv(id));
  const auto& runs = file.content().runs;
  if (runs.size() != 1 || runs.front().tokens != tokens) {
    return {ErrorCode::kCorrupt, "the KV of a saved chunk is of other tokens"};
  }
  return engine_.tiers().read_segment(file, 0);
}

void ChunkService::adopt_all(std::span<const std::string> ids) {
  for (const std::string& id : ids) {
    adopt(id);
  }
}

// Writes what a registration has created, or lets it be written. Callers' thread.
Status ChunkService::save(const std::string& id) {
  if (store_ == nullptr) {
    return {};
  }
  HeldRef held;
  bool behind = false;  // what waits for the disk keeps its blocks: not while they are short
  QUIRE_TRY(const kv::NewChunk chunk, engine_.ask<kv::NewChunk>([&]() -> Result<kv::NewChunk> {
    QUIRE_TRY(const kv::Chunk* known, registry_.get(id));
    const auto variant = known->variants.find({.before = known->anchor});
    if (variant != known->variants.end()) {
      QUIRE_TRY(const kv::SegmentId alias, ledger().derive(variant->second, {}));
      held = engine_.tiers().keep(alias);
    }
    behind =
        !options_.write_through && ledger().blocks_available() > ledger().config().num_blocks / 4;
    const kv::NewChunk& chunk = *known;
    return chunk;
  }));
  if (!behind) {
    return writes_.write_now(id, [&] { return store_->put(chunk, held, engine_.tiers()); });
  }
  writes_.put(id, [this, chunk, held = std::move(held)] {
    return written_->put(chunk, held, engine_.tiers());
  });
  return {};
}

// Those on disk that are not in `known`, as they would be listed.
std::vector<ChunkInfo> ChunkService::saved_infos(std::span<const ChunkInfo> known) const {
  std::vector<ChunkInfo> infos;
  if (store_ == nullptr) {
    return infos;
  }
  for (const kv::Chunk& chunk : store_->list()) {
    if (std::ranges::find(known, chunk.id, &ChunkInfo::chunk_id) == known.end()) {
      infos.push_back(info_of(chunk));
    }
  }
  return infos;
}

}  // namespace quire::engine
