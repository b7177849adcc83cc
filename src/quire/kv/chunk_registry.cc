#include "quire/kv/chunk_registry.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/registry_state.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

constexpr std::size_t kShownDigits = 12;  // digits of an id in messages
constexpr int kRankDigits = 16;           // digits of an id that its rank takes: 64 bits

std::uint64_t rank_of(std::string_view id) {
  std::uint64_t rank = 0;
  for (const char digit : id.substr(0, kRankDigits)) {
    rank = rank * 16 + static_cast<std::uint64_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return rank;
}

std::string shown(std::string_view id) {
  return id.size() <= kShownDigits ? std::string(id)
                                   : base::str_cat(id.substr(0, kShownDigits), "...");
}

// Returns what a message says before and behind the time since the removal.
std::pair<const char*, const char*> removal_words(Removal reason) {
  switch (reason) {
    case Removal::kDeleted:
      return {"deleted", ""};
    case Removal::kCleared:
      return {"cleared", ""};
    case Removal::kEvictedForCount:
      return {"evicted", " to keep to max_chunks"};
    case Removal::kEvictedForBlocks:
      return {"evicted", " to keep to chunk_memory_ratio of the KV blocks"};
    case Removal::kExpired:
      return {"expired", ""};
    case Removal::kUnused:
      return {"evicted", " by evict_unused_chunks"};
  }
  return {"", ""};
}

}  // namespace

ChunkRegistry::ChunkRegistry(RegistryConfig config, Ledger& ledger)
    : state_(std::make_unique<RegistryState>(std::move(config), ledger)),
      variants_(*state_),
      usage_(*state_),
      room_(*state_) {}

ChunkRegistry::~ChunkRegistry() = default;

const Chunk* ChunkRegistry::find(std::string_view id) {
  Chunk* chunk = state_->lookup(id);
  if (chunk != nullptr && state_->expired(*chunk, state_->config.now())) {
    state_->remove(id, Removal::kExpired);
    return nullptr;
  }
  return chunk != nullptr && chunk->listed ? chunk : nullptr;
}

const Chunk* ChunkRegistry::find(std::string_view id, std::string_view salt) {
  const Chunk* const chunk = find(id);
  return chunk != nullptr && chunk->salt == salt ? chunk : nullptr;
}

const Chunk* ChunkRegistry::find_text(const std::string& text_id, std::string_view content) {
  const auto text = state_->by_text.find(text_id);
  const Chunk* chunk = text == state_->by_text.end() ? nullptr : find(text->second);
  return chunk != nullptr && chunk->content == content ? chunk : nullptr;
}

Result<const Chunk*> ChunkRegistry::get(std::string_view id, std::string_view salt) {
  if (const Chunk* chunk = find(id, salt)) {
    return chunk;
  }
  return Error{.code = ErrorCode::kNotFound,
               .message = base::str_cat("no chunk ", base::quoted(shown(id)), ": ", fate(id, salt),
                                        "; register it (again)"),
               .chunk_id = std::string(id)};
}

std::vector<const Chunk*> ChunkRegistry::list_all() {
  state_->expire();
  std::vector<const Chunk*> chunks;
  for (const auto& [id, chunk] : state_->chunks) {
    if (chunk.listed) {
      chunks.push_back(&chunk);
    }
  }
  return chunks;
}

std::vector<const Chunk*> ChunkRegistry::list(std::string_view salt) {
  state_->expire();
  std::vector<const Chunk*> chunks;
  for (const auto& [id, chunk] : state_->chunks) {
    if (chunk.listed && chunk.salt == salt) {
      chunks.push_back(&chunk);
    }
  }
  std::ranges::sort(chunks, {}, [](const Chunk* chunk) { return chunk->registration; });
  return chunks;
}

std::string ChunkRegistry::last_system(std::string_view salt) {
  state_->expire();
  const auto known = state_->tenants.find(salt);
  return known == state_->tenants.end() || known->second.systems.empty()
             ? std::string()
             : known->second.systems.back()->id;
}

Result<const Chunk*> ChunkRegistry::begin(NewChunk chunk, const std::optional<VariantKey>& key,
                                          bool replaces) {
  QUIRE_CHECK(state_->lookup(chunk.id) == nullptr, "a chunk was begun twice");
  const std::int64_t bytes = key ? state_->bytes_for(chunk) : 0;
  const std::vector<std::string_view> before = anchor_ids(key ? key->before : std::string_view());
  QUIRE_TRY_STATUS(room_.make_room(
      {.salt = chunk.salt, .chunks = replaces ? 0 : 1, .bytes = bytes, .spared = before}));
  RegistryState::Tenant& tenant = state_->tenant(chunk.salt);
  tenant.systems.reserve(static_cast<std::size_t>(tenant.chunks) + 1);  // finish() needs none
  Chunk entry{std::move(chunk)};
  entry.accessed = state_->config.now();
  entry.created = entry.created_before.value_or(entry.accessed);
  entry.registration = entry.use = ++state_->last_use;
  entry.used_at = state_->ledger.cache().now();
  entry.rank = rank_of(entry.id);
  if (key) {
    entry.pending[*key] = bytes;
  }
  std::string id = entry.id;
  if (!entry.text_id.empty()) {
    state_->by_text[entry.text_id] = id;  // the text id of a chunk that is not there finds nothing
  }
  Chunk& begun = state_->chunks.emplace(std::move(id), std::move(entry)).first->second;
  ++tenant.chunks;
  state_->add_bytes(begun.salt, bytes);
  return &begun;
}

void ChunkRegistry::finish(std::string_view id, const std::optional<KVError>& error) {
  Chunk* chunk = state_->lookup(id);
  QUIRE_CHECK(chunk != nullptr, "finished a chunk that is not there");
  if (!chunk->kv_error) {
    chunk->kv_error = error;
  }
  if (!std::exchange(chunk->listed, true) && chunk->type == ChunkType::kSystemPrompt &&
      !chunk->temporary) {
    state_->tenant(chunk->salt).systems.push_back(chunk);
  }
}

void ChunkRegistry::give_up(std::string_view id) {
  const Chunk* const chunk = state_->lookup(id);
  if (chunk != nullptr && !chunk->listed && chunk->pending.empty() && chunk->variants.empty()) {
    state_->forget(*chunk);
  }
}

bool ChunkRegistry::merge(const NewChunk& chunk) {
  Chunk* known = state_->lookup(chunk.id);
  QUIRE_CHECK(known != nullptr && known->listed, "merged with a chunk that is not there");
  std::string metadata = base::merged_objects(known->metadata_json, chunk.metadata_json);
  const bool pinned = known->pinned || chunk.pinned;
  const auto ttl_seconds = chunk.ttl_seconds ? chunk.ttl_seconds : known->ttl_seconds;
  const std::int32_t priority = chunk.priority != 0 ? chunk.priority : known->priority;
  const bool changed =
      std::tie(metadata, pinned, ttl_seconds, priority) !=
      std::tie(known->metadata_json, known->pinned, known->ttl_seconds, known->priority);
  known->metadata_json = std::move(metadata);
  known->pinned = pinned;
  known->ttl_seconds = ttl_seconds;
  known->priority = priority;
  known->keep_hidden = chunk.keep_hidden ? chunk.keep_hidden : known->keep_hidden;
  known->temporary = false;
  state_->touch(*known);
  RegistryState::Tenant& tenant = state_->tenant(known->salt);
  tenant.counts.hits += known->variants.empty() ? 0 : 1;
  if (known->type == ChunkType::kSystemPrompt) {
    std::erase(tenant.systems, known);
    tenant.systems.push_back(known);
  }
  return changed;
}

Result<NewChunk> ChunkRegistry::updated(std::string_view id, std::string_view salt,
                                        const ChunkUpdate& update) {
  std::string metadata = "{}";
  if (update.metadata_json) {
    QUIRE_TRY(metadata, base::kept_object(*update.metadata_json, "metadata"));
  }
  if (update.ttl_seconds && *update.ttl_seconds && !(**update.ttl_seconds > 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("ttl_seconds is ", **update.ttl_seconds, "; give more than 0, or none")};
  }
  QUIRE_TRY(const Chunk* const known, get(id, salt));
  NewChunk chunk = static_cast<const NewChunk&>(*known);
  chunk.metadata_json = base::merged_objects(chunk.metadata_json, metadata);
  chunk.ttl_seconds = update.ttl_seconds.value_or(chunk.ttl_seconds);
  chunk.pinned = update.pinned.value_or(chunk.pinned);
  chunk.priority = update.priority.value_or(chunk.priority);
  chunk.temporary = false;
  return chunk;
}

Result<const Chunk*> ChunkRegistry::update(std::string_view id, std::string_view salt,
                                           const ChunkUpdate& update) {
  QUIRE_TRY(NewChunk now, updated(id, salt, update));
  Chunk* const chunk = state_->lookup(id);
  static_cast<NewChunk&>(*chunk) = std::move(now);
  return chunk;
}

bool ChunkRegistry::remove(std::string_view id, Removal reason) {
  return state_->remove(id, reason);
}

std::int64_t ChunkRegistry::clear(std::string_view salt, std::optional<ChunkType> type) {
  state_->expire();
  return state_->remove_all(Removal::kCleared, [&](const Chunk& chunk) {
    return chunk.salt == salt && chunk.listed && chunk.holders == 0 && chunk.pending.empty() &&
           (!type || chunk.type == *type);
  });
}

std::int64_t ChunkRegistry::evict_unused(std::string_view salt, double max_age_seconds) {
  state_->expire();
  const auto now = state_->config.now();
  return state_->remove_all(Removal::kUnused, [&](const Chunk& chunk) {
    return chunk.salt == salt && may_go(chunk) &&
           seconds_between(chunk.accessed, now) >= max_age_seconds;
  });
}

std::string ChunkRegistry::fate(std::string_view id, std::string_view salt) const {
  const RegistryState& state = *state_;
  const auto known = state.tenants.find(salt);
  const std::deque<RegistryState::Gone> nothing;
  const std::deque<RegistryState::Gone>& all =
      known == state.tenants.end() ? nothing : known->second.gone;
  const auto last = std::find_if(all.rbegin(), all.rend(),
                                 [&](const RegistryState::Gone& gone) { return gone.id == id; });
  if (last == all.rend()) {
    const std::string said =
        state.config.known_elsewhere ? state.config.known_elsewhere(id, salt) : "";
    return said.empty() ? "never registered" : said;
  }
  const auto [how, why] = removal_words(last->reason);
  return base::str_cat(how, " ",
                       static_cast<std::int64_t>(seconds_between(last->when, state.config.now())),
                       " s ago", why);
}

RegistryCounts ChunkRegistry::counts(std::string_view salt) const {
  const auto known = state_->tenants.find(salt);
  return known == state_->tenants.end() ? RegistryCounts() : known->second.counts;
}

RegistryCounts ChunkRegistry::total_counts() const {
  RegistryCounts sum;
  for (const auto& [salt, tenant] : state_->tenants) {
    sum.hits += tenant.counts.hits;
    sum.misses += tenant.counts.misses;
    sum.evictions += tenant.counts.evictions;
    sum.bytes += tenant.counts.bytes;
  }
  return sum;
}

Status ChunkRegistry::check() const {
  const RegistryState& state = *state_;
  std::map<std::string_view, std::pair<std::int32_t, std::int64_t>> counted;  // chunks, bytes
  for (const auto& [id, chunk] : state.chunks) {
    auto& [chunks, bytes] = counted[chunk.salt];
    ++chunks;
    bytes += state.bytes_of(chunk);
    if (id != chunk.id) {
      return {ErrorCode::kInternal, base::str_cat("chunk ", id, " is filed wrongly")};
    }
  }
  std::int64_t all = 0;
  for (const auto& [salt, tenant] : state.tenants) {
    const auto [chunks, bytes] = counted[salt];
    all += bytes;
    if (bytes != tenant.counts.bytes || chunks != tenant.chunks ||
        chunks > state.config.max_chunks) {
      return {ErrorCode::kInternal,
              base::str_cat("tenant ", base::quoted(salt), " has ", chunks, " chunks of at most ",
                            state.config.max_chunks, " with ", bytes, " bytes, counted ",
                            tenant.chunks, " and ", tenant.counts.bytes)};
    }
  }
  if (all != state.bytes || all > state.max_bytes() || counted.size() > state.tenants.size()) {
    return {ErrorCode::kInternal, base::str_cat("chunks hold ", all, " bytes, counted ",
                                                state.bytes, " of ", state.max_bytes())};
  }
  return {};
}

}  // namespace quire::kv
