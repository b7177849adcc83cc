#include "quire/kv/chunk_registry.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

constexpr std::size_t kRememberedChunks = 4096;  // chunks that have gone
constexpr std::size_t kShownDigits = 12;         // of an id in messages
constexpr int kRankDigits = 16;                  // of an id: 64 bits

double seconds_between(WallClock::time_point from, WallClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::uint64_t rank_of(std::string_view id) {
  std::uint64_t rank = 0;
  for (const char digit : id.substr(0, kRankDigits)) {
    rank = rank * 16 + static_cast<std::uint64_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return rank;
}

bool has(std::span<const std::string_view> ids, std::string_view id) {
  return std::ranges::find(ids, id) != ids.end();
}

std::string shown(std::string_view id) {
  return id.size() <= kShownDigits ? std::string(id)
                                   : base::str_cat(id.substr(0, kShownDigits), "...");
}

Status deleted() noexcept {
  try {
    return {ErrorCode::kNotFound, "the chunk was deleted while it was computed"};
  } catch (const std::bad_alloc&) {
    return base::no_memory("a chunk");
  }
}

// Before and behind how long ago it was.
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
    : config_(std::move(config)), ledger_(ledger) {}

ChunkRegistry::~ChunkRegistry() {
  for (const auto& [id, chunk] : chunks_) {
    for (const auto& [key, segment] : chunk.variants) {
      ledger_.drop_segment(segment);
    }
  }
}

ChunkRegistry::Tenant& ChunkRegistry::tenant(std::string_view salt) {
  const auto known = tenants_.find(salt);
  return known != tenants_.end() ? known->second : tenants_[std::string(salt)];
}

void ChunkRegistry::add_blocks(std::string_view salt, std::int32_t blocks) {
  tenant(salt).counts.blocks += blocks;
  blocks_ += blocks;
}

Chunk* ChunkRegistry::lookup(std::string_view id) {
  const auto found = chunks_.find(id);
  return found == chunks_.end() ? nullptr : &found->second;
}

std::int32_t ChunkRegistry::blocks_for(std::size_t tokens) const {
  const auto block_tokens = static_cast<std::size_t>(ledger_.config().block_tokens);
  return static_cast<std::int32_t>((tokens + block_tokens - 1) / block_tokens);
}

std::int32_t ChunkRegistry::blocks_of(const Chunk& chunk) const {
  std::int32_t blocks = 0;
  for (const auto& [key, segment] : chunk.variants) {
    blocks += ledger_.num_blocks(segment);
  }
  for (const auto& [key, aside] : chunk.pending) {
    blocks += aside;
  }
  return blocks;
}

bool ChunkRegistry::may_go(const Chunk& chunk) const {
  return chunk.listed && !chunk.pinned && chunk.holders == 0 && chunk.pending.empty();
}

bool ChunkRegistry::expired(const Chunk& chunk, WallClock::time_point now) const {
  return chunk.ttl_seconds && may_go(chunk) &&
         seconds_between(chunk.accessed, now) > *chunk.ttl_seconds;
}

void ChunkRegistry::expire(Spared spared) {
  const auto now = config_.now();
  remove_all(Removal::kExpired,
             [&](const Chunk& chunk) { return expired(chunk, now) && !has(spared, chunk.id); });
}

// In the order of registration: what stays in the prefix cache depends on it.
std::int64_t ChunkRegistry::remove_all(Removal reason,
                                       const std::function<bool(const Chunk&)>& goes) {
  std::vector<const Chunk*> going;
  for (const auto& [id, chunk] : chunks_) {
    if (goes(chunk)) {
      going.push_back(&chunk);
    }
  }
  std::ranges::sort(going, {}, &Chunk::registration);
  for (const Chunk* const chunk : going) {
    remove(chunk->id, reason);
  }
  return std::ssize(going);
}

const Chunk* ChunkRegistry::find(std::string_view id) {
  Chunk* chunk = lookup(id);
  if (chunk != nullptr && expired(*chunk, config_.now())) {
    remove(id, Removal::kExpired);
    return nullptr;
  }
  return chunk != nullptr && chunk->listed ? chunk : nullptr;
}

const Chunk* ChunkRegistry::find(std::string_view id, std::string_view salt) {
  const Chunk* const chunk = find(id);
  return chunk != nullptr && chunk->salt == salt ? chunk : nullptr;
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

std::vector<const Chunk*> ChunkRegistry::list(std::string_view salt) {
  expire();
  std::vector<const Chunk*> chunks;
  for (const auto& [id, chunk] : chunks_) {
    if (chunk.listed && chunk.salt == salt) {
      chunks.push_back(&chunk);
    }
  }
  std::ranges::sort(chunks, {}, [](const Chunk* chunk) { return chunk->registration; });
  return chunks;
}

const Chunk* ChunkRegistry::find_text(const std::string& text_id, std::string_view content) {
  const auto text = by_text_.find(text_id);
  const Chunk* chunk = text == by_text_.end() ? nullptr : find(text->second);
  return chunk != nullptr && chunk->content == content ? chunk : nullptr;
}

void ChunkRegistry::touch(Chunk& chunk) {
  chunk.accessed = config_.now();
  chunk.use = ++last_use_;
  chunk.used_at = ledger_.now();
  chunk.closed = false;
  ++chunk.accesses;
}

bool ChunkRegistry::merge(const NewChunk& chunk) {
  Chunk* known = lookup(chunk.id);
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
  known->temporary = false;
  touch(*known);
  Tenant& tenant = this->tenant(known->salt);
  tenant.counts.hits += known->variants.empty() ? 0 : 1;
  if (known->type == ChunkType::kSystemPrompt) {
    std::erase(tenant.systems, known);
    tenant.systems.push_back(known);
  }
  return changed;
}

Result<const Chunk*> ChunkRegistry::begin(NewChunk chunk, const std::optional<VariantKey>& key) {
  QUIRE_CHECK(lookup(chunk.id) == nullptr, "a chunk was begun twice");
  const std::int32_t blocks = key ? blocks_for(chunk.tokens->size()) : 0;
  const std::string_view before = key ? std::string_view(key->before) : "";
  QUIRE_TRY_STATUS(
      make_room({.salt = chunk.salt, .chunks = 1, .blocks = blocks, .spared = {&before, 1}}));
  Tenant& tenant = this->tenant(chunk.salt);
  tenant.systems.reserve(static_cast<std::size_t>(tenant.chunks) + 1);  // publish() needs none
  Chunk entry{std::move(chunk)};
  entry.accessed = config_.now();
  entry.created = entry.created_before.value_or(entry.accessed);
  entry.registration = entry.use = ++last_use_;
  entry.used_at = ledger_.now();
  entry.rank = rank_of(entry.id);
  if (key) {
    entry.pending[*key] = blocks;
  }
  std::string id = entry.id;
  if (!entry.text_id.empty()) {
    by_text_[entry.text_id] = id;  // of a chunk that is not there it finds nothing
  }
  Chunk& begun = chunks_.emplace(std::move(id), std::move(entry)).first->second;
  ++tenant.chunks;
  add_blocks(begun.salt, blocks);
  return &begun;
}

Status ChunkRegistry::begin_variants(std::span<const VariantName> variants, std::int64_t lacking) {
  std::vector<std::int32_t> blocks;
  std::vector<std::string_view> spared;
  std::string salt;
  for (const auto& [id, key] : variants) {
    const Chunk* chunk = lookup(id);
    QUIRE_CHECK(chunk != nullptr, "a variant of a chunk that is not there");
    salt = chunk->salt;
    blocks.push_back(blocks_for(chunk->tokens->size()));
    spared.insert(spared.end(), {id, key.before});
  }
  const std::int32_t all = std::accumulate(blocks.begin(), blocks.end(), 0);
  QUIRE_TRY_STATUS(make_room({.salt = salt, .blocks = all, .spared = spared, .lacking = lacking}));
  std::size_t begun = 0;
  try {
    for (; begun < variants.size(); ++begun) {
      lookup(variants[begun].first)->pending[variants[begun].second] = blocks[begun];
    }
  } catch (const std::bad_alloc&) {
    for (const auto& [id, key] : variants.first(begun)) {
      lookup(id)->pending.erase(key);
    }
    throw;
  }
  if (all > 0) {
    add_blocks(salt, all);
  }
  return {};
}

void ChunkRegistry::drop_variant(const VariantName& variant) {
  Chunk* chunk = lookup(variant.first);
  if (chunk == nullptr || !chunk->variants.contains(variant.second)) {
    return;
  }
  const SegmentId segment = chunk->variants.extract(variant.second).mapped();
  add_blocks(chunk->salt, -ledger_.num_blocks(segment));
  ledger_.forget_segment(segment);
}

void ChunkRegistry::give_up(std::string_view id) {
  const Chunk* const chunk = lookup(id);
  if (chunk != nullptr && !chunk->listed && chunk->pending.empty()) {
    forget(*chunk);
  }
}

bool ChunkRegistry::owns(SegmentId segment) const {
  return std::ranges::any_of(chunks_, [&](const auto& chunk) {
    return std::ranges::any_of(chunk.second.variants,
                               [&](const auto& variant) { return variant.second == segment; });
  });
}

Status ChunkRegistry::end(std::string_view id, const VariantKey& key,
                          std::optional<SegmentId> segment) noexcept {
  Chunk* chunk = lookup(id);
  if (chunk == nullptr || !chunk->pending.contains(key)) {
    if (segment) {
      ledger_.forget_segment(*segment);
    }
    return deleted();
  }
  Status ended;
  if (segment) {
    try {
      chunk->variants[key] = *segment;
    } catch (const std::bad_alloc&) {  // as if it was not computed
      ledger_.forget_segment(*segment);
      segment.reset();
      ended = base::no_memory("the KV of a chunk");
    }
  }
  const auto aside = chunk->pending.find(key);
  add_blocks(chunk->salt, -aside->second);
  chunk->pending.erase(aside);
  if (segment) {
    add_blocks(chunk->salt, ledger_.num_blocks(*segment));
  } else if (!chunk->listed && chunk->pending.empty()) {
    forget(*chunk);
  }
  return ended;
}

void ChunkRegistry::publish(std::string_view id) {
  Chunk* chunk = lookup(id);
  QUIRE_CHECK(chunk != nullptr, "published a chunk that is not there");
  if (!std::exchange(chunk->listed, true) && chunk->type == ChunkType::kSystemPrompt &&
      !chunk->temporary) {
    tenant(chunk->salt).systems.push_back(chunk);
  }
}

std::string ChunkRegistry::last_system(std::string_view salt) {
  expire();
  const auto known = tenants_.find(salt);
  return known == tenants_.end() || known->second.systems.empty()
             ? std::string()
             : known->second.systems.back()->id;
}

void ChunkRegistry::use(std::string_view id, SessionRef session) {
  Chunk* chunk = lookup(id);
  QUIRE_CHECK(chunk != nullptr, "used a chunk that is not there");
  chunk->temporary = false;
  touch(*chunk);
  if (session == SessionRef()) {
    chunk->others = true;
  } else if (std::ranges::find(chunk->users, session) == chunk->users.end()) {
    chunk->users.push_back(session);
  }
}

void ChunkRegistry::close_session(SessionRef session) {
  for (auto& [id, chunk] : chunks_) {
    const bool used = std::erase(chunk.users, session) > 0;
    chunk.closed = chunk.closed || (used && chunk.users.empty() && !chunk.others);
  }
}

void ChunkRegistry::forget_session(SessionRef session) {
  for (auto& [id, chunk] : chunks_) {
    chunk.others = std::erase(chunk.users, session) > 0 || chunk.others;
  }
}

bool ChunkRegistry::stands_behind(std::string_view before, std::string_view salt) const {
  const auto is_behind = [&](const auto& variant) { return variant.first.before == before; };
  return std::ranges::any_of(chunks_, [&](const auto& entry) {
    const Chunk& chunk = entry.second;
    return chunk.salt == salt && (std::ranges::any_of(chunk.variants, is_behind) ||
                                  std::ranges::any_of(chunk.pending, is_behind));
  });
}

ChunkRegistry::Hold ChunkRegistry::hold(std::string_view id) {
  Chunk* chunk = lookup(id);
  QUIRE_CHECK(chunk != nullptr, "held a chunk that is not there");
  Hold hold{.id = chunk->id, .registration = chunk->registration};
  ++chunk->holders;
  return hold;
}

void ChunkRegistry::release(const Hold& hold) {
  Chunk* chunk = lookup(hold.id);
  if (chunk != nullptr && chunk->registration == hold.registration) {  // not deleted meanwhile
    --chunk->holders;
  }
}

void ChunkRegistry::count(std::string_view salt, std::int64_t hits, std::int64_t misses) {
  RegistryCounts& counts = tenant(salt).counts;
  counts.hits += hits;
  counts.misses += misses;
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
  Chunk* const chunk = lookup(id);
  static_cast<NewChunk&>(*chunk) = std::move(now);
  return chunk;
}

bool ChunkRegistry::remove(std::string_view id, Removal reason) {
  Chunk* chunk = lookup(id);
  if (chunk == nullptr || !chunk->listed) {
    return false;
  }
  add_blocks(chunk->salt, -blocks_of(*chunk));
  const bool evicted = reason == Removal::kEvictedForCount || reason == Removal::kEvictedForBlocks;
  for (const auto& [key, segment] : chunk->variants) {
    evicted ? ledger_.drop_segment(segment) : ledger_.forget_segment(segment);
  }
  remember_gone(*chunk, reason);
  forget(*chunk);
  return true;
}

// Where there is no memory for it, nobody will know why the chunk has gone.
void ChunkRegistry::remember_gone(const Chunk& chunk, Removal reason) {
  std::deque<Gone>& gone = tenant(chunk.salt).gone;
  try {
    gone.push_back({.id = chunk.id, .reason = reason, .when = config_.now()});
  } catch (const std::bad_alloc&) {
    return;
  }
  if (gone.size() > kRememberedChunks) {
    gone.pop_front();
  }
}

void ChunkRegistry::forget(const Chunk& chunk) {
  const auto text = by_text_.find(chunk.text_id);
  if (text != by_text_.end() && text->second == chunk.id) {
    by_text_.erase(text);
  }
  Tenant& tenant = this->tenant(chunk.salt);
  std::erase(tenant.systems, &chunk);
  --tenant.chunks;
  chunks_.erase(chunks_.find(chunk.id));
}

std::int64_t ChunkRegistry::clear(std::string_view salt, std::optional<ChunkType> type) {
  expire();
  return remove_all(Removal::kCleared, [&](const Chunk& chunk) {
    return chunk.salt == salt && chunk.listed && chunk.holders == 0 && chunk.pending.empty() &&
           (!type || chunk.type == *type);
  });
}

std::int64_t ChunkRegistry::evict_unused(std::string_view salt, double max_age_seconds) {
  expire();
  const auto now = config_.now();
  return remove_all(Removal::kUnused, [&](const Chunk& chunk) {
    return chunk.salt == salt && may_go(chunk) &&
           seconds_between(chunk.accessed, now) >= max_age_seconds;
  });
}

std::string ChunkRegistry::fate(std::string_view id, std::string_view salt) const {
  const auto known = tenants_.find(salt);
  const std::deque<Gone> nothing;
  const std::deque<Gone>& all = known == tenants_.end() ? nothing : known->second.gone;
  const auto last =
      std::find_if(all.rbegin(), all.rend(), [&](const Gone& gone) { return gone.id == id; });
  if (last == all.rend()) {
    const std::string said = config_.known_elsewhere ? config_.known_elsewhere(id, salt) : "";
    return said.empty() ? "never registered" : said;
  }
  const auto [how, why] = removal_words(last->reason);
  return base::str_cat(how, " ",
                       static_cast<std::int64_t>(seconds_between(last->when, config_.now())),
                       " s ago", why);
}

RegistryCounts ChunkRegistry::counts(std::string_view salt) const {
  const auto known = tenants_.find(salt);
  return known == tenants_.end() ? RegistryCounts() : known->second.counts;
}

Status ChunkRegistry::check() const {
  std::map<std::string_view, std::pair<std::int32_t, std::int32_t>> counted;  // chunks, blocks
  for (const auto& [id, chunk] : chunks_) {
    auto& [chunks, blocks] = counted[chunk.salt];
    ++chunks;
    blocks += blocks_of(chunk);
    if (id != chunk.id) {
      return {ErrorCode::kInternal, base::str_cat("chunk ", id, " is filed wrongly")};
    }
  }
  std::int32_t all = 0;
  for (const auto& [salt, tenant] : tenants_) {
    const auto [chunks, blocks] = counted[salt];
    all += blocks;
    if (blocks != tenant.counts.blocks || chunks != tenant.chunks || chunks > config_.max_chunks) {
      return {ErrorCode::kInternal,
              base::str_cat("tenant ", base::quoted(salt), " has ", chunks, " chunks of at most ",
                            config_.max_chunks, " with ", blocks, " blocks, counted ",
                            tenant.chunks, " and ", tenant.counts.blocks)};
    }
  }
  if (all != blocks_ || all > config_.max_blocks || counted.size() > tenants_.size()) {
    return {ErrorCode::kInternal, base::str_cat("chunks hold ", all, " blocks, counted ", blocks_,
                                                " of ", config_.max_blocks)};
  }
  return {};
}

}  // namespace quire::kv
