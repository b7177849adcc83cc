#include "quire/chunks/chunk_library.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/saved_chunks.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/block_table.h"
#include "quire/kv/chunk_anchor.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_uses.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

namespace {

// Returns 128 bits of chance.
std::string make_nonce() {
  std::random_device chance;
  return base::str_cat(chance(), ".", chance(), ".", chance(), ".", chance());
}

}  // namespace

ChunkLibrary::ChunkLibrary(ChunkCore& core, ChunkPrefills& prefills)
    : core_(core), prefills_(prefills), writes_(core.engine.log()) {}

Status ChunkLibrary::open() {
  if (core_.options.store.empty()) {
    return {};
  }
  // Writes go around the page cache: the pool has the KV already.
  const auto open = [&] {
    std::vector<std::string> formats;
    formats.reserve(core_.engine.core().num_formats());
    for (std::uint8_t i = 0; i < core_.engine.core().num_formats(); ++i) {
      formats.push_back(core_.kv_name(kv::FormatId{i}));
    }
    return SavedChunks::open(core_.options.store,
                             {.model = core_.engine.model_digest(), .formats = std::move(formats)},
                             {.max_bytes = core_.options.max_store_bytes,
                              .write = {.compress = core_.options.compress_store, .direct = true}});
  };
  QUIRE_TRY(saved_, open());
  QUIRE_TRY(written_, open());
  QUIRE_TRY(kv_store::Store told, kv_store::Store::open(core_.options.store));
  uses_ = std::make_unique<kv_store::StoreUses>(std::move(told));
  if (const Status writable = saved_->check_writable(); !writable.ok()) {
    core_.engine.core().bundle.remarks.push_back(
        base::str_cat("new chunks are not saved: ", writable.error().message));
  }
  nonce_ = make_nonce();
  return {};
}

// Returns whether new chunks are written. A read-only store takes none, and flush() says so.
bool ChunkLibrary::saves() {
  const Status writable = saved_ == nullptr ? Status() : saved_->check_writable();
  if (!writable.ok()) {
    writes_.refuse(writable);
  }
  return saved_ != nullptr && writable.ok();
}

Status ChunkLibrary::adopt(const std::string& id, const std::string& salt, ReadBehind* behind) {
  const auto saved = saved_chunk(id, salt);
  if (!saved) {
    return {};
  }
  if (saved->anchor.empty()) {
    return adopt_saved(*saved, behind);
  }
  QUIRE_TRY(const bool stands, adopt_anchor(saved->anchor, salt));
  return stands ? adopt_saved(*saved, behind) : Status();
}

// Returns whether the chunks that a context was computed behind are there, or can be read.
Result<bool> ChunkLibrary::adopt_anchor(std::string_view anchor, const std::string& salt) {
  const std::vector<std::string_view> ids = anchor_ids(anchor);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto saved = saved_chunk(std::string(ids[i]), salt);
    if (saved && kv::check_in_anchor(*saved, std::span(ids).first(i)).ok()) {
      QUIRE_TRY_STATUS(adopt_saved(*saved, nullptr));
    }
    const kv::Chunk* known = core_.registry.find(ids[i], salt);
    if (known == nullptr || !kv::check_in_anchor(*known, std::span(ids).first(i)).ok()) {
      return false;
    }
  }
  return true;
}

std::optional<kv::Chunk> ChunkLibrary::saved_chunk(const std::string& id, const std::string& salt) {
  if (saved_ == nullptr || id.empty() || core_.registry.find(id) != nullptr) {
    return std::nullopt;
  }
  auto saved = saved_->find(id, salt);
  return saved && core_.engine.check_prompt(*saved->tokens).ok() ? std::move(saved) : std::nullopt;
}

Status ChunkLibrary::adopt_saved(const kv::Chunk& saved, ReadBehind* behind) {
  const kv::NewChunk& chunk = saved;
  const kv::VariantName name{chunk.id, kv::registered_key(chunk)};
  if (prefills_.is_under_way(name)) {
    return {};  // somebody computes it
  }
  // A system chunk is listed with KV or not at all: then it is registered anew. The KV of a context
  // is computed where it is used, if that is the faster way and gives what was saved.
  const bool is_system = chunk.type == ChunkType::kSystemPrompt;
  const bool has_kv = core_.needs_kv(chunk);
  bool read = false;
  if (has_kv && (is_system || chunk.converted || reads_next(name))) {
    QUIRE_TRY([[maybe_unused]] const kv::Chunk* begun, core_.registry.begin(chunk, name.second));
    QUIRE_TRY(read, read_kv(chunk, name.second, is_system ? nullptr : behind));
  }
  if (!read && has_kv && is_system) {
    return {};
  }
  if (!read) {
    QUIRE_TRY([[maybe_unused]] const kv::Chunk* begun, core_.registry.begin(chunk, std::nullopt));
  }
  core_.registry.finish(chunk.id);
  return {};
}

// Returns whether saved KV is read now. Notes that it is not where computing is faster.
bool ChunkLibrary::reads_next(const kv::VariantName& name) {
  const bool reads = core_.tiers.reload_policy().reads_next();
  if (!reads) {
    not_read_.insert(name);
  }
  return reads;
}

// Reads KV into the room that is set aside for it. Returns false for damaged or foreign KV.
Result<bool> ChunkLibrary::read_kv(const kv::NewChunk& chunk, const kv::VariantKey& key,
                                   ReadBehind* behind) {
  const auto segment = load(chunk, key, behind);
  if (!segment.ok()) {
    [[maybe_unused]] const Status given_up =
        core_.registry.variants().end(chunk.id, key, std::nullopt);
    return segment.error().code == ErrorCode::kOutOfBlocks ? Result<bool>(segment.error()) : false;
  }
  not_read_.erase({chunk.id, key});
  Status kept = core_.registry.variants().end(chunk.id, key, *segment);
  const bool no_memory = !kept.ok() && kept.error().code == ErrorCode::kOutOfBlocks;
  return no_memory ? Result<bool>(std::move(kept).error()) : kept.ok();
}

Result<bool> ChunkLibrary::read_variants(const Compositions& compositions, ReadBehind* behind) {
  bool any = false;
  for (const kv::ResolvedComposition& composition : compositions) {
    for (const kv::Part& part : composition.missing()) {
      QUIRE_TRY(const bool read, read_variant(part, behind));
      any = any || read;
    }
  }
  return any;
}

Result<bool> ChunkLibrary::read_variant(const kv::Part& part, ReadBehind* behind) {
  const kv::Chunk& chunk = *part.chunk;
  const kv::VariantKey& key = part.key;
  const kv::VariantName name{chunk.id, key};
  const bool had = chunk.variants.contains(key);  // for an earlier composition
  if (had || key == kv::registered_key(chunk) || prefills_.is_under_way(name) ||
      !has_kv(chunk, key) || !reads_next(name)) {
    return false;
  }
  QUIRE_TRY_STATUS(core_.registry.variants().begin({&name, 1}));
  return read_kv(chunk, key, behind);
}

void ChunkLibrary::start_reading(ReadBehind behind) {
  core_.tiers.start(std::move(behind.read), [this, arriving = std::move(behind.arriving)](
                                                tiers::BackgroundLoads::Load& load) {
    drop_damaged(load, arriving);
    core_.engine.refresh_stats();
  });
}

// Takes damaged KV from its chunks, which stay: their KV is computed where it is used.
void ChunkLibrary::drop_damaged(tiers::BackgroundLoads::Load& load,
                                std::span<const ArrivingVariant> arriving) {
  for (const ArrivingVariant& each : arriving) {
    const kv::Chunk* const chunk = core_.registry.find(each.name.first);
    const auto& [id, key] = each.name;
    const bool stands = chunk != nullptr && chunk->variants.contains(key) &&
                        chunk->variants.at(key) == each.segment;
    if (stands && !load.outcome(each.kv->parts()).ok()) {
      core_.registry.variants().drop(each.name);
    }
  }
}

// Returns the name of a chunk's KV in the store.
std::string ChunkLibrary::object_of(const kv::NewChunk& chunk, const kv::VariantKey& key) const {
  if (key == kv::registered_key(chunk)) {
    return chunk.id;
  }
  std::string before = key.before;
  if (before == kv::kBosVariant) {
    before = base::str_cat(kv::kBosVariant, " ", core_.bos_token().value_or(-1));
  }
  return kv::variant_id(chunk.id, before, key.gap);
}

Result<std::string> ChunkLibrary::last_system(const std::string& salt) {
  std::string id = core_.registry.last_system(salt);
  if (!id.empty() || saved_ == nullptr) {
    return id;
  }
  kv::WallClock::time_point last;
  for (const kv::Chunk& chunk : saved_->list(salt)) {
    if (chunk.type == ChunkType::kSystemPrompt && (id.empty() || chunk.created >= last)) {
      id = chunk.id;
      last = chunk.created;
    }
  }
  QUIRE_TRY_STATUS(adopt(id, salt));
  return core_.registry.last_system(salt);
}

Result<kv::SegmentId> ChunkLibrary::load(const kv::NewChunk& chunk, const kv::VariantKey& key,
                                         ReadBehind* behind) {
  QUIRE_TRY(kv_store::KVFile file, saved_->open_kv(object_of(chunk, key)));
  note_use(chunk.id, chunk.salt);
  if (!tiers::holds_segment(file, *chunk.tokens, core_.has_states())) {
    return {ErrorCode::kCorrupt, "the KV of a saved chunk is of other tokens"};
  }
  if (behind == nullptr) {
    return core_.tiers.read_segment(file, chunk.format);
  }
  QUIRE_TRY(
      const kv::SegmentId segment,
      core_.tiers.add_to(behind->read, std::make_shared<const kv_store::KVFile>(std::move(file)),
                         chunk.format));
  behind->arriving.push_back(
      {.name = {chunk.id, key}, .segment = segment, .kv = behind->read.held.back()});
  return segment;
}

// Holds the KV of a chunk for a writer, also when the chunk goes. Returns null when it has none,
// and for maps in blocks of codes, which files check as codes. Waits for KV that is being read.
// Engine thread.
Result<tiers::HeldRef> ChunkLibrary::hold_kv(const kv::Chunk& chunk, const kv::VariantKey& key) {
  const auto variant = chunk.variants.find(key);
  const bool is_coded =
      core_.engine.core().paged_pool.geometry().format != tensor::KVFormat::kPlain;
  if (variant == chunk.variants.end() || (core_.has_states() && is_coded)) {
    return tiers::HeldRef();
  }
  QUIRE_TRY_STATUS(core_.make_readable({&variant->second, 1}));
  const kv::BlockTable& blocks = core_.ledger().segments().find(variant->second)->blocks();
  QUIRE_TRY_STATUS(core_.tiers.background_loads().outcome(kv::parts_of(blocks)));
  QUIRE_TRY(const kv::SegmentId alias, core_.ledger().segments().derive(variant->second, {}));
  return core_.tiers.keep(alias);
}

Status ChunkLibrary::save(const std::string& id, const std::string& salt) {
  if (!saves()) {
    return {};
  }
  tiers::HeldRef held;
  // A write that waits for the disk keeps its blocks: not while they are short.
  bool behind = false;
  QUIRE_TRY(const kv::NewChunk chunk,
            core_.engine.thread().ask<kv::NewChunk>([&]() -> Result<kv::NewChunk> {
              QUIRE_TRY(const kv::Chunk* known, core_.registry.get(id, salt));
              QUIRE_TRY(held, hold_kv(*known, kv::registered_key(*known)));
              behind = !core_.options.write_through &&
                       core_.ledger().blocks_available() > core_.ledger().config().num_blocks / 4;
              const kv::NewChunk& chunk = *known;
              return chunk;
            }));
  if (!behind) {
    return writes_.write_now(id, [&] { return saved_->put(chunk, held, core_.tiers); });
  }
  writes_.put(id, [this, chunk, held = std::move(held)] {
    return written_->put(chunk, held, core_.tiers);
  });
  return {};
}

bool ChunkLibrary::is_lost(const std::string& id, const std::string& salt) {
  return saved_ != nullptr && !writes_.is_waiting(id) && !saved_->has(id, salt);
}

Status ChunkLibrary::save_registered(const std::string& id, const std::string& salt, bool unsaved,
                                     bool changed) {
  if (unsaved || writes_.has_failed(id) || is_lost(id, salt)) {
    return save(id, salt);
  }
  if (!changed || !saves()) {
    return {};
  }
  QUIRE_TRY(const kv::NewChunk chunk,
            core_.engine.thread().ask<kv::NewChunk>([&]() -> Result<kv::NewChunk> {
              QUIRE_TRY(const kv::Chunk* known, core_.registry.get(id, salt));
              const kv::NewChunk& chunk = *known;
              return chunk;
            }));
  if (core_.options.write_through) {
    return writes_.write_now(id, [&] { return saved_->update(chunk); });
  }
  writes_.put(id, [this, chunk] { return written_->update(chunk); });
  return {};
}

void ChunkLibrary::save_variants(const StartedPrefills& computed) {
  if (saved_ == nullptr) {
    return;
  }
  for (const auto& [name, prefill] : computed) {
    const auto& [id, key] = name;
    tiers::HeldRef held;
    std::string object, salt;
    [[maybe_unused]] const Status closed = core_.engine.thread().call([&] {
      const kv::Chunk* const chunk = core_.registry.find(id);
      if (not_read_.erase(name) > 0 || chunk == nullptr || kv::is_chained(key)) {
        return;  // saved already, gone, or for one composition alone
      }
      const auto kv = hold_kv(*chunk, key);
      held = kv.ok() ? *kv : nullptr;
      object = object_of(*chunk, key);
      salt = chunk->salt;
    });
    if (held != nullptr && saves()) {
      // The chunk's own name says whether the chunk is written.
      const std::string write = base::str_cat("kv ", object);
      writes_.put(write, [this, id = id, salt, object, held = std::move(held)] {
        return written_->put_variant(id, salt, object, held, core_.tiers);
      });
    }
  }
}

std::vector<kv::Chunk> ChunkLibrary::saved_chunks(const std::string& salt) const {
  return saved_ == nullptr ? std::vector<kv::Chunk>() : saved_->list(salt);
}

std::string ChunkLibrary::why_not_found(std::string_view id, std::string_view salt) const {
  return saved_ == nullptr ? std::string()
                           : saved_->why_not_found(std::string(id), std::string(salt),
                                                   core_.tiers.paged_pool().geometry());
}

void ChunkLibrary::stop() {
  writes_.stop();
  uses_ = nullptr;
}

void ChunkLibrary::note_use(const std::string& id, const std::string& salt) const {
  if (uses_ != nullptr) {
    uses_->note(id, salt);
  }
}

void ChunkLibrary::note_saved(ChunkInfo& info, const std::string& salt) {
  const auto saved = saved_ == nullptr ? std::nullopt : saved_->find(info.chunk_id, salt);
  info.saved = saved.has_value();
  info.pinned = info.pinned || (saved && saved->pinned);
}

}  // namespace quire::chunks
