#include "quire/chunks/saved_chunks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

// Converts seconds. A thousand years are for ever.
std::int64_t to_ms(double seconds) {
  constexpr double kLongest = 1000.0 * 366 * 24 * 3600;
  return static_cast<std::int64_t>(std::min(seconds, kLongest) * 1000);
}

// Reads a chunk. A stranger may have written anything: a field that is not as it should be ends the
// reading.
Result<kv::NewChunk> parse_chunk(base::JsonView object, const ReadableChunks& readable) {
  kv::NewChunk chunk;
  QUIRE_TRY(const std::string written_for, base::get_string(object, "model", ""));
  if (written_for != readable.model) {
    return {ErrorCode::kIncompatible, "a chunk of another model"};
  }
  QUIRE_TRY(const std::string type, base::get_string(object, "type", ""));
  bool known = false;
  for (const ChunkType each : {ChunkType::kSystemPrompt, ChunkType::kContext, ChunkType::kQuery}) {
    if (type == chunk_type_name(each)) {
      chunk.type = each;
      known = true;
    }
  }
  QUIRE_TRY(const std::string kv_dtype,
            base::get_string(object, "kv_dtype", readable.formats.front()));
  const auto format = std::ranges::find(readable.formats, kv_dtype);
  if (format == readable.formats.end()) {
    return {ErrorCode::kIncompatible, "a chunk in another KV format"};
  }
  chunk.format.value = static_cast<std::uint8_t>(format - readable.formats.begin());
  const base::JsonView tokens = object.find("token_ids");
  const base::JsonView metadata = object.find("metadata");
  if (!known || tokens.is_null() || !metadata.is_object()) {
    return {ErrorCode::kCorrupt, "a saved chunk lacks its type, ids or metadata"};
  }
  auto ids = base::read_json_list<TokenId>(tokens);
  if (!ids || ids->empty()) {
    return {ErrorCode::kCorrupt, "the ids of a saved chunk are malformed"};
  }
  chunk.tokens = std::make_shared<const std::vector<TokenId>>(std::move(*ids));
  chunk.metadata_json = base::write_json(metadata);
  QUIRE_TRY(chunk.content, base::get_string(object, "content", ""));
  QUIRE_TRY(chunk.anchor, base::get_string(object, "anchor", ""));
  QUIRE_TRY(chunk.text_id, base::get_string(object, "text_id", ""));
  QUIRE_TRY(const double ttl, base::get_double(object, "ttl_seconds", 0));
  QUIRE_TRY(const std::int64_t priority, base::get_int(object, "priority", 0));
  chunk.priority = static_cast<std::int32_t>(priority);
  if (!chunk.anchor.empty() && chunk.type != ChunkType::kContext) {
    return {ErrorCode::kCorrupt, "only contexts have an anchor"};
  }
  if (ttl > 0) {
    chunk.ttl_seconds = ttl;
  }
  QUIRE_TRY(chunk.converted, base::get_bool(object, "converted", false));
  KVError error;
  QUIRE_TRY(error.key, base::get_double(object, "kv_key_error", 0));
  QUIRE_TRY(error.value, base::get_double(object, "kv_value_error", 0));
  QUIRE_TRY(error.bits_per_value, base::get_double(object, "kv_bits", 0));
  if (error.bits_per_value > 0) {
    chunk.kv_error = error;
  }
  return chunk;
}

Result<kv::NewChunk> parse_chunk(const kv_store::StoreEntry& entry,
                                 const ReadableChunks& readable) {
  QUIRE_TRY(const base::Json value, base::parse_json(entry.metadata_json, "a saved chunk"));
  if (!value.view().is_object()) {
    return {ErrorCode::kCorrupt, "a saved chunk is no JSON object"};
  }
  return parse_chunk(value, readable);
}

// Returns what people call the chunk: its metadata "name", if that is a text that an entry can have
// for its name.
std::string name_in(base::JsonView metadata) {
  const base::JsonView name = metadata.find("name");
  const std::string_view text = name.is_string() ? name.as_string() : std::string_view();
  const bool fits = text.size() <= kv_store::kMaxNameBytes && text.find('\0') == text.npos;
  return fits ? std::string(text) : std::string();
}

}  // namespace

Result<std::unique_ptr<SavedChunks>> SavedChunks::open(const std::string& folder,
                                                       ReadableChunks readable,
                                                       kv_store::StoreOptions options) {
  auto store = kv_store::Store::open(folder, std::move(options));
  if (!store.ok()) {
    return tiers::missing_file(std::move(store).error());
  }
  return std::unique_ptr<SavedChunks>(
      new SavedChunks(std::move(store).value(), std::move(readable)));
}

kv_store::StoreEntry SavedChunks::entry_of(const kv::NewChunk& chunk,
                                           const kv_store::StoreEntry* known) const {
  base::Json metadata = base::parse_json(chunk.metadata_json, "metadata").value();
  std::string name = name_in(metadata.view());
  auto object = base::Json::object({{"model", readable_.model},
                                    {"type", chunk_type_name(chunk.type)},
                                    {"content", chunk.content},
                                    {"token_ids", base::Json::list(*chunk.tokens)},
                                    {"metadata", std::move(metadata)},
                                    {"anchor", chunk.anchor},
                                    {"text_id", chunk.text_id},
                                    {"priority", chunk.priority}});
  if (chunk.ttl_seconds) {
    object.set("ttl_seconds", *chunk.ttl_seconds);
  }
  if (chunk.format != kv::kOwnFormat) {
    object.set("kv_dtype", readable_.formats[chunk.format.value]);
  }
  if (chunk.converted) {
    object.set("converted", true);
  }
  if (chunk.kv_error) {
    object.set("kv_key_error", chunk.kv_error->key);
    object.set("kv_value_error", chunk.kv_error->value);
    object.set("kv_bits", chunk.kv_error->bits_per_value);
  }
  kv_store::StoreEntry entry{.key = chunk.id,
                             .tenant = chunk.salt,
                             .kind = kv_store::EntryKind::kChunk,
                             .name = std::move(name),
                             .metadata_json = base::write_json(object),
                             .pinned = chunk.pinned};
  if (chunk.ttl_seconds) {
    entry.ttl_ms = to_ms(*chunk.ttl_seconds);
  }
  if (known != nullptr) {
    entry.parts = known->parts;
    entry.created_ms = known->created_ms;
    entry.pinned = entry.pinned || known->pinned;
  }
  return entry;
}

std::optional<kv::Chunk> SavedChunks::parse(const kv_store::StoreEntry& entry) const {
  auto parsed = parse_chunk(entry, readable_);
  if (!parsed.ok()) {
    return std::nullopt;
  }
  const auto time = [](std::int64_t milliseconds) {
    return kv::WallClock::time_point(std::chrono::milliseconds(milliseconds));
  };
  kv::Chunk chunk{std::move(parsed).value()};
  chunk.id = entry.key;
  chunk.salt = entry.tenant;
  chunk.pinned = entry.pinned;
  chunk.created = time(entry.created_ms);
  chunk.created_before = chunk.created;
  chunk.accessed = time(entry.accessed_ms);
  return chunk;
}

Result<kv_store::ObjectRange> SavedChunks::write_object(const std::string& object,
                                                        const tiers::HeldRef& segment,
                                                        const tiers::TierService& tiers) {
  QUIRE_TRY(const tiers::TierService::Readable from, tiers.readable(*segment));
  QUIRE_TRY([[maybe_unused]] const std::int64_t written,
            store_.objects().put(object, tiers.content_of(*segment), from.pool(), from.runs));
  return kv_store::ObjectRange{.object = object, .tokens = std::ssize(segment->tokens)};
}

Status SavedChunks::put(const kv::NewChunk& chunk, const tiers::HeldRef& segment,
                        const tiers::TierService& tiers) {
  const std::lock_guard lock(mutex_);
  return kv_store::put_until_there([&] { return put_once(chunk, segment, tiers); });
}

Status SavedChunks::put_once(const kv::NewChunk& chunk, const tiers::HeldRef& segment,
                             const tiers::TierService& tiers) {
  const auto known = find_entry(chunk.id, chunk.salt);
  kv_store::StoreEntry entry = entry_of(chunk, known ? &*known : nullptr);
  std::erase_if(entry.parts, [&](const auto& part) { return part.object == chunk.id; });
  if (segment != nullptr) {
    QUIRE_TRY(const kv_store::ObjectRange part, write_object(chunk.id, segment, tiers));
    entry.parts.insert(entry.parts.begin(), part);
  }
  return store_.entries().put(std::move(entry));
}

Status SavedChunks::put_variant(const std::string& id, const std::string& tenant,
                                const std::string& object, const tiers::HeldRef& segment,
                                const tiers::TierService& tiers) {
  const std::lock_guard lock(mutex_);
  if (!find_entry(id, tenant)) {
    return {};
  }
  QUIRE_TRY(const kv_store::ObjectRange part, write_object(object, segment, tiers));
  std::optional<kv_store::StoreEntry> entry =
      find_entry(id, tenant);  // has what others have added meanwhile, too
  if (!entry || std::ranges::find(entry->parts, part) != entry->parts.end()) {
    return {};
  }
  entry->parts.push_back(part);
  return store_.entries().put(*std::move(entry));
}

Status SavedChunks::update(const kv::NewChunk& chunk, std::optional<bool> pinned) {
  const std::lock_guard lock(mutex_);
  const auto known = find_entry(chunk.id, chunk.salt);
  if (!known) {
    return {};
  }
  kv_store::StoreEntry entry = entry_of(chunk, &*known);
  entry.pinned = pinned.value_or(entry.pinned);
  if (entry.metadata_json == known->metadata_json && entry.pinned == known->pinned &&
      entry.ttl_ms == known->ttl_ms) {
    return {};
  }
  entry.accessed_ms = known->accessed_ms;  // no use
  return store_.entries().put(std::move(entry));
}

std::optional<kv_store::StoreEntry> SavedChunks::find_entry(const std::string& id,
                                                            const std::string& tenant) const {
  if (!kv_store::is_hash(id)) {
    return std::nullopt;
  }
  auto found = store_.entries().find(id, tenant);
  std::optional<kv_store::StoreEntry> entry = found.ok() ? std::move(found).value() : std::nullopt;
  return entry && entry->kind == kv_store::EntryKind::kChunk ? entry : std::nullopt;
}

bool SavedChunks::has(const std::string& id, const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  const auto known = store_.entries().has(id, tenant);
  return known.ok() && *known;
}

std::optional<kv::Chunk> SavedChunks::find(const std::string& id, const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  const auto entry = find_entry(id, tenant);
  return entry ? parse(*entry) : std::nullopt;
}

std::string SavedChunks::why_not_found(const std::string& id, const std::string& tenant,
                                       const tensor::KVGeometry& here) {
  const std::lock_guard lock(mutex_);
  const auto entry = find_entry(id, tenant);
  if (!entry) {
    return {};
  }
  const auto chunk = parse_chunk(*entry, readable_);
  if (chunk.ok()) {
    return {};
  }
  if (chunk.error().code != ErrorCode::kIncompatible) {
    return base::str_cat("damaged in the store (", chunk.error().message, ")");
  }
  std::string differs;
  for (const std::string& object : kv_store::objects_of(*entry)) {
    const auto file = store_.objects().open(object);
    differs = file.ok() ? kv_store::geometry_difference(file->content().geometry, here) : differs;
  }
  return base::str_cat("in the store, but of another model or KV format",
                       differs.empty() ? "" : base::str_cat(" (", differs, ")"));
}

std::vector<kv::Chunk> SavedChunks::list(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  std::vector<kv::Chunk> chunks;
  const auto entries =
      store_.entries().list({.kind = kv_store::EntryKind::kChunk, .tenant = tenant});
  if (!entries.ok()) {
    return chunks;
  }
  for (const kv_store::StoreEntry& entry : *entries) {
    if (auto chunk = parse(entry)) {
      chunks.push_back(std::move(*chunk));
    }
  }
  return chunks;
}

Result<kv_store::KVFile> SavedChunks::open_kv(const std::string& object) {
  const std::lock_guard lock(mutex_);
  return store_.objects().open(object);
}

bool SavedChunks::has_kv(const std::string& id, const std::string& tenant,
                         const std::string& object) {
  const std::lock_guard lock(mutex_);
  const auto entry = find_entry(id, tenant);
  return entry && std::ranges::find(entry->parts, object, &kv_store::ObjectRange::object) !=
                      entry->parts.end();
}

Result<bool> SavedChunks::remove(const std::string& id, const std::string& tenant, bool wipe) {
  if (!kv_store::is_hash(id)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  return store_.remover().remove(id, tenant, wipe);
}

}  // namespace quire::chunks
