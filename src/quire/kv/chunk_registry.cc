#include "quire/kv/chunk_registry.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
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
#include "quire/base/str.h"
#include "quire/chunks.h"
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

Chunk* ChunkRegistry::lookup(std::string_view id) {
  const auto found = chunks_.find(std::string(id));
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
  std::vector<std::string> ids;
  for (const auto& [id, chunk] : chunks_) {
    if (expired(chunk, now) && !has(spared, id)) {
      ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    remove(id, Removal::kExpired);
  }
}

const Chunk* ChunkRegistry::find(std::string_view id) {
  Chunk* chunk = lookup(id);
  if (chunk != nullptr && expired(*chunk, config_.now())) {
    remove(id, Removal::kExpired);
    return nullptr;
  }
  return chunk != nullptr && chunk->listed ? chunk : nullptr;
}

Result<const Chunk*> ChunkRegistry::get(std::string_view id) {
  if (const Chunk* chunk = find(id)) {
    return chunk;
  }
  return Error{.code = ErrorCode::kNotFound,
               .message = base::str_cat("no chunk ", base::quoted(shown(id)), ": ", fate(id),
                                        "; register it (again)"),
               .chunk_id = std::string(id)};
}

std::vector<const Chunk*> ChunkRegistry::list() {
  expire();
  std::vector<const Chunk*> chunks;
  for (const auto& [id, chunk] : chunks_) {
    if (chunk.listed) {
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
  const auto said = [known] {
    return std::tuple(known->metadata_json, known->pinned, known->ttl_seconds, known->priority);
  };
  const auto before = said();
  known->metadata_json = base::merged_objects(known->metadata_json, chunk.metadata_json);
  known->pinned = known->pinned || chunk.pinned;
  if (chunk.ttl_seconds) {
    known->ttl_seconds = chunk.ttl_seconds;
  }
  if (chunk.priority != 0) {
    known->priority = chunk.priority;
  }
  known->temporary = false;
  touch(*known);
  counts_.hits += known->variants.empty() ? 0 : 1;
  if (known->type == ChunkType::kSystemPrompt) {
    std::erase(systems_, chunk.id);
    systems_.push_back(chunk.id);
  }
  return said() != before;
}

std::vector<const Chunk*> ChunkRegistry::eviction_order(Spared spared) const {
  using Place = std::tuple<std::int32_t, Standing, std::uint64_t>;
  std::vector<std::pair<Place, const Chunk*>> places;
  for (const auto& [id, chunk] : chunks_) {
    if (may_go(chunk) && !has(spared, id)) {
      const bool unsaid = chunk.others || chunk.users.empty();
      const Standing standing =
          chunk.closed ? Standing() : ledger_.standing(chunk.users, unsaid, chunk.used_at);
      places.emplace_back(Place(chunk.priority, standing, chunk.use), &chunk);
    }
  }
  std::ranges::sort(places);
  std::vector<const Chunk*> order;
  std::ranges::transform(places, std::back_inserter(order), &decltype(places)::value_type::second);
  return order;
}

Status ChunkRegistry::check_size(std::int64_t chunks, std::int64_t blocks) const {
  if (chunks > config_.max_chunks) {
    return {ErrorCode::kOverflow,
            base::str_cat("there would be ", chunks, " chunks at a time, there may be ",
                          config_.max_chunks, "; raise max_chunks")};
  }
  if (blocks <= config_.max_blocks) {
    return {};
  }
  return Error{
      .code = ErrorCode::kOverflow,
      .message = base::str_cat("chunks would need ", blocks, " blocks (",
                               base::format_bytes(blocks * config_.block_bytes),
                               "), all chunks together may hold ", config_.max_blocks, " (",
                               base::format_bytes(config_.max_blocks * config_.block_bytes),
                               "); raise kv_budget or chunk_memory_ratio"),
      .needed_bytes = blocks * config_.block_bytes,
      .free_bytes = config_.max_blocks * config_.block_bytes};
}

Error ChunkRegistry::no_room(std::int32_t chunks, std::int32_t blocks, bool for_chunks) const {
  const std::int64_t bytes = config_.block_bytes;
  const char* others = "; the others are pinned or in use: unpin or delete some";
  return Error{
      .code = ErrorCode::kOutOfBlocks,
      .message =
          for_chunks
              ? base::str_cat("no room for ", chunks, " more chunks: there are ", chunks_.size(),
                              " of ", config_.max_chunks, others, ", or raise max_chunks")
              : base::str_cat("no room: chunks would need ", blocks, " more blocks (",
                              base::format_bytes(blocks * bytes), "), they hold ", counts_.blocks,
                              " of ", config_.max_blocks, " (",
                              base::format_bytes(config_.max_blocks * bytes), ")", others),
      .needed_bytes = blocks * bytes,
      .free_bytes = std::max(0, config_.max_blocks - counts_.blocks) * bytes};
}

Error ChunkRegistry::pool_has_no_room(std::int64_t lacking) const {
  const std::int64_t free_blocks = ledger_.blocks_available();
  const std::int64_t needed = free_blocks + lacking;
  return {.code = ErrorCode::kOutOfBlocks,
          .message = base::str_cat("no room: ", needed, " blocks are needed (",
                                   base::format_bytes(needed * config_.block_bytes), "), ",
                                   free_blocks, " of ", ledger_.config().num_blocks,
                                   " can be had, and chunks that are neither pinned nor in use do "
                                   "not hold the rest; unpin or delete something, or raise "
                                   "kv_budget"),
          .needed_bytes = needed * config_.block_bytes,
          .free_bytes = free_blocks * config_.block_bytes};
}

Result<ChunkRegistry::Victims> ChunkRegistry::victims_for(std::int32_t chunks, std::int32_t blocks,
                                                          Spared spared, std::int64_t lacking) {
  QUIRE_TRY_STATUS(check_size(chunks, blocks));
  expire(spared);
  const std::int64_t beyond_limit = std::int64_t{counts_.blocks} + blocks - config_.max_blocks;
  std::int64_t excess_blocks = std::max(beyond_limit, lacking);
  std::int64_t excess_chunks = std::ssize(chunks_) + chunks - std::int64_t{config_.max_chunks};
  Victims victims;
  for (const Chunk* chunk : eviction_order(spared)) {
    const std::int32_t freed = blocks_of(*chunk);
    if (excess_chunks > 0 || (excess_blocks > 0 && freed > 0)) {
      victims.emplace_back(
          chunk->id, excess_chunks > 0 ? Removal::kEvictedForCount : Removal::kEvictedForBlocks);
      excess_blocks -= freed;
      --excess_chunks;
    }
  }
  if (excess_blocks > 0 && lacking > beyond_limit) {
    return pool_has_no_room(lacking);
  }
  if (excess_blocks > 0 || excess_chunks > 0) {
    return no_room(chunks, blocks, excess_blocks <= 0);
  }
  return victims;
}

Status ChunkRegistry::check_room(std::int32_t chunks, std::int32_t blocks, Spared spared) {
  const Result<Victims> victims = victims_for(chunks, blocks, spared, 0);
  return victims.ok() ? Status() : victims.error();
}

Status ChunkRegistry::make_room(std::int32_t chunks, std::int32_t blocks, Spared spared,
                                std::int64_t lacking) {
  QUIRE_TRY(const Victims victims, victims_for(chunks, blocks, spared, lacking));
  for (const auto& [id, reason] : victims) {
    remove(id, reason);
    ++counts_.evictions;
  }
  return {};
}

Result<const Chunk*> ChunkRegistry::begin(NewChunk chunk, const std::optional<VariantKey>& key) {
  QUIRE_CHECK(lookup(chunk.id) == nullptr, "a chunk was begun twice");
  const std::int32_t blocks = key ? blocks_for(chunk.tokens->size()) : 0;
  const std::string_view before = key ? std::string_view(key->before) : "";
  QUIRE_TRY_STATUS(make_room(1, blocks, {&before, 1}));
  Chunk entry{std::move(chunk)};
  entry.accessed = config_.now();
  entry.created = entry.created_before.value_or(entry.accessed);
  entry.registration = entry.use = ++last_use_;
  entry.used_at = ledger_.now();
  entry.rank = rank_of(entry.id);
  if (key) {
    entry.pending[*key] = blocks;
  }
  counts_.blocks += blocks;
  if (!entry.text_id.empty()) {
    by_text_[entry.text_id] = entry.id;
  }
  const std::string id = entry.id;
  return &chunks_.emplace(id, std::move(entry)).first->second;
}

Status ChunkRegistry::begin_variants(std::span<const VariantName> variants, std::int64_t lacking) {
  std::vector<std::int32_t> blocks;
  std::vector<std::string_view> spared;
  for (const auto& [id, key] : variants) {
    const Chunk* chunk = lookup(id);
    QUIRE_CHECK(chunk != nullptr, "a variant of a chunk that is not there");
    blocks.push_back(blocks_for(chunk->tokens->size()));
    spared.insert(spared.end(), {id, key.before});
  }
  const std::int32_t all = std::accumulate(blocks.begin(), blocks.end(), 0);
  QUIRE_TRY_STATUS(make_room(0, all, spared, lacking));
  for (std::size_t i = 0; i < variants.size(); ++i) {
    lookup(variants[i].first)->pending[variants[i].second] = blocks[i];
  }
  counts_.blocks += all;
  return {};
}

void ChunkRegistry::drop_variant(const VariantName& variant) {
  Chunk* chunk = lookup(variant.first);
  if (chunk == nullptr || !chunk->variants.contains(variant.second)) {
    return;
  }
  const SegmentId segment = chunk->variants.extract(variant.second).mapped();
  counts_.blocks -= ledger_.num_blocks(segment);
  ledger_.forget_segment(segment);
}

bool ChunkRegistry::end(std::string_view id, const VariantKey& key,
                        std::optional<SegmentId> segment) {
  Chunk* chunk = lookup(id);
  if (chunk == nullptr || !chunk->pending.contains(key)) {
    if (segment) {
      ledger_.forget_segment(*segment);
    }
    return false;
  }
  counts_.blocks -= chunk->pending.extract(key).mapped();
  if (segment) {
    counts_.blocks += ledger_.num_blocks(*segment);
    chunk->variants[key] = *segment;
  } else if (!chunk->listed && chunk->pending.empty()) {
    forget(*chunk);
  }
  return true;
}

void ChunkRegistry::publish(std::string_view id) {
  Chunk* chunk = lookup(id);
  QUIRE_CHECK(chunk != nullptr, "published a chunk that is not there");
  if (!std::exchange(chunk->listed, true) && chunk->type == ChunkType::kSystemPrompt) {
    systems_.emplace_back(id);
  }
}

std::string ChunkRegistry::last_system() {
  expire();
  return systems_.empty() ? std::string() : systems_.back();
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

bool ChunkRegistry::stands_behind(std::string_view before) const {
  const auto is_behind = [&](const auto& variant) { return variant.first.before == before; };
  return std::ranges::any_of(chunks_, [&](const auto& entry) {
    const Chunk& chunk = entry.second;
    return std::ranges::any_of(chunk.variants, is_behind) ||
           std::ranges::any_of(chunk.pending, is_behind);
  });
}

ChunkRegistry::Hold ChunkRegistry::hold(std::string_view id) {
  Chunk* chunk = lookup(id);
  QUIRE_CHECK(chunk != nullptr, "held a chunk that is not there");
  ++chunk->holders;
  return {.id = chunk->id, .registration = chunk->registration};
}

void ChunkRegistry::release(const Hold& hold) {
  Chunk* chunk = lookup(hold.id);
  if (chunk != nullptr && chunk->registration == hold.registration) {  // not deleted meanwhile
    --chunk->holders;
  }
}

void ChunkRegistry::count(std::int64_t hits, std::int64_t misses) {
  counts_.hits += hits;
  counts_.misses += misses;
}

Result<NewChunk> ChunkRegistry::updated(std::string_view id, const ChunkUpdate& update) {
  std::string metadata = "{}";
  if (update.metadata_json) {
    QUIRE_TRY(metadata, base::kept_object(*update.metadata_json, "metadata"));
  }
  if (update.ttl_seconds && *update.ttl_seconds && !(**update.ttl_seconds > 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("ttl_seconds is ", **update.ttl_seconds, "; give more than 0, or none")};
  }
  QUIRE_TRY(const Chunk* const known, get(id));
  NewChunk chunk = static_cast<const NewChunk&>(*known);
  chunk.metadata_json = base::merged_objects(chunk.metadata_json, metadata);
  chunk.ttl_seconds = update.ttl_seconds.value_or(chunk.ttl_seconds);
  chunk.pinned = update.pinned.value_or(chunk.pinned);
  chunk.priority = update.priority.value_or(chunk.priority);
  chunk.temporary = false;
  return chunk;
}

Result<const Chunk*> ChunkRegistry::update(std::string_view id, const ChunkUpdate& update) {
  QUIRE_TRY(NewChunk now, updated(id, update));
  Chunk* const chunk = lookup(id);
  static_cast<NewChunk&>(*chunk) = std::move(now);
  return chunk;
}

bool ChunkRegistry::remove(std::string_view id, Removal reason) {
  Chunk* chunk = lookup(id);
  if (chunk == nullptr || !chunk->listed) {
    return false;
  }
  counts_.blocks -= blocks_of(*chunk);
  const bool evicted = reason == Removal::kEvictedForCount || reason == Removal::kEvictedForBlocks;
  for (const auto& [key, segment] : chunk->variants) {
    evicted ? ledger_.drop_segment(segment) : ledger_.forget_segment(segment);
  }
  gone_.push_back({.id = chunk->id, .reason = reason, .when = config_.now()});
  if (gone_.size() > kRememberedChunks) {
    gone_.pop_front();
  }
  forget(*chunk);
  return true;
}

void ChunkRegistry::forget(const Chunk& chunk) {
  const auto text = by_text_.find(chunk.text_id);
  if (text != by_text_.end() && text->second == chunk.id) {
    by_text_.erase(text);
  }
  std::erase(systems_, chunk.id);
  chunks_.erase(std::string(chunk.id));
}

std::int64_t ChunkRegistry::clear(std::optional<ChunkType> type) {
  expire();
  std::vector<std::string> ids;
  for (const auto& [id, chunk] : chunks_) {
    if (chunk.listed && chunk.holders == 0 && chunk.pending.empty() &&
        (!type || chunk.type == *type)) {
      ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    remove(id, Removal::kCleared);
  }
  return std::ssize(ids);
}

std::int64_t ChunkRegistry::evict_unused(double max_age_seconds) {
  expire();
  const auto now = config_.now();
  std::vector<std::string> ids;
  for (const auto& [id, chunk] : chunks_) {
    if (may_go(chunk) && seconds_between(chunk.accessed, now) >= max_age_seconds) {
      ids.push_back(id);
    }
  }
  for (const std::string& id : ids) {
    remove(id, Removal::kUnused);
  }
  return std::ssize(ids);
}

std::string ChunkRegistry::fate(std::string_view id) const {
  const auto last =
      std::find_if(gone_.rbegin(), gone_.rend(), [&](const Gone& gone) { return gone.id == id; });
  if (last == gone_.rend()) {
    const std::string known = config_.known_elsewhere ? config_.known_elsewhere(id) : "";
    return known.empty() ? "never registered" : known;
  }
  const auto [how, why] = removal_words(last->reason);
  return base::str_cat(how, " ",
                       static_cast<std::int64_t>(seconds_between(last->when, config_.now())),
                       " s ago", why);
}

RegistryCounts ChunkRegistry::counts() const { return counts_; }

Status ChunkRegistry::check() const {
  std::int32_t blocks = 0;
  for (const auto& [id, chunk] : chunks_) {
    blocks += blocks_of(chunk);
    if (id != chunk.id) {
      return {ErrorCode::kInternal, base::str_cat("chunk ", id, " is filed wrongly")};
    }
  }
  if (blocks != counts_.blocks || blocks > config_.max_blocks) {
    return {ErrorCode::kInternal, base::str_cat("chunks hold ", blocks, " blocks, counted ",
                                                counts_.blocks, " of ", config_.max_blocks)};
  }
  if (std::ssize(chunks_) > config_.max_chunks) {
    return {ErrorCode::kInternal, base::str_cat(chunks_.size(), " chunks of ", config_.max_chunks)};
  }
  return {};
}

}  // namespace quire::kv
