#include "quire/chunks/narrowing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/stored_again.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/block_table.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_room.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/chunk_usage.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {
namespace {

// Makes the error of a chunk whose KV is not there.
Error no_kv(const kv::Chunk& chunk, std::string_view way_out) {
  return {.code = ErrorCode::kIncompatible,
          .message = base::str_cat("the KV of chunk ", chunk.id.substr(0, 12),
                                   "... is not here now", way_out),
          .chunk_id = chunk.id};
}

using Variants = std::vector<std::pair<kv::VariantKey, kv::SegmentId>>;

// Formats of KV by what they hold, the most first.
struct KVPrecision {
  std::string_view name;
  int bits;
};
constexpr KVPrecision kPrecisions[] = {{"float32", 32}, {"bfloat16", 16}, {"float16", 16},
                                       {"fp8", 8},      {"int8", 8},      {"int4", 4}};

int bits_of(std::string_view name) {
  const auto* const found = std::ranges::find(kPrecisions, name, &KVPrecision::name);
  return found == std::end(kPrecisions) ? 0 : found->bits;
}

// Converts the KV of a segment to that of another one, which was made for another format.
Status convert(ChunkCore& core, const kv::Segment& from, const kv::Segment& to,
               kernels::KVErrorSums& sums) {
  kv_store::PagedPool& pool = core.engine.core().paged_pool;
  const std::int32_t block_tokens = pool.geometry().block_tokens;
  std::vector<StoredAgain> blocks;
  blocks.reserve(static_cast<std::size_t>(from.blocks().size()));
  for (std::int32_t i = 0; i < from.blocks().size(); ++i) {
    blocks.push_back({.from = from.blocks().ref(i),
                      .to = to.blocks().ref(i),
                      .tokens = std::min(block_tokens, from.num_tokens() - i * block_tokens)});
  }
  return store_again({.kernels = core.engine.context(), .pool = pool}, blocks, sums);
}

// Returns a segment with the KV of `id` in another format.
Result<kv::SegmentId> converted(ChunkCore& core, kv::SegmentId id, kv::FormatId to,
                                kernels::KVErrorSums& sums) {
  kv::Segments& segments = core.ledger().segments();
  QUIRE_TRY_STATUS(core.make_readable({&id, 1}));
  const kv::Segment* const from = segments.find(id);
  QUIRE_TRY_STATUS(core.tiers.background_loads().outcome(kv::parts_of(from->blocks())));
  QUIRE_TRY(
      const kv::SegmentId made,
      segments.reserve({from->tokens().begin(), from->tokens().end()}, from->stored_from(), to));
  Status status = core.engine.copy_blocks_now();
  if (status.ok()) {
    status = convert(core, *from, *segments.find(made), sums);
  }
  if (status.ok()) {
    status = segments.share_maps(id, made);
  }
  if (!status.ok()) {
    segments.drop(made);
    return status.error();
  }
  return made;
}

// Converts the KV of one variant. Room has been set aside for it.
Status convert_variant(ChunkCore& core, const std::string& id, const kv::VariantKey& key,
                       kv::SegmentId from, kv::FormatId to, kernels::KVErrorSums& sums) {
  const auto made = converted(core, from, to, sums);
  if (!made.ok()) {
    [[maybe_unused]] const Status ended = core.registry.variants().end(id, key, std::nullopt);
    return made.error();
  }
  return core.registry.variants().end(id, key, *made);
}

// Converts KV of another chunk for one that has begun with room for the first. Where some cannot be
// converted, the chunk is forgotten with all that it has.
Status convert_all(ChunkCore& core, const kv::NewChunk& chunk, const Variants& variants,
                   kernels::KVErrorSums& sums) {
  kv::BlockCounts blocks;
  core.add_blocks(chunk, blocks);
  Status status;
  std::size_t done = 0;
  for (; status.ok() && done < variants.size(); ++done) {
    const auto& [key, segment] = variants[done];
    if (done > 0) {
      const kv::VariantName name{chunk.id, key};
      status = core.registry.variants().begin({&name, 1}, core.ledger().bytes_lacking(blocks));
    }
    if (status.ok()) {
      status = convert_variant(core, chunk.id, key, segment, chunk.format, sums);
    }
  }
  if (!status.ok()) {
    for (const auto& [key, segment] : std::span(variants).first(done)) {
      core.registry.variants().drop({chunk.id, key});  // the last one is not there
    }
    core.registry.give_up(chunk.id);
  }
  return status;
}

// Begins the chunk and converts its KV: that which it is registered with first.
Status begin_converted(ChunkCore& core, const kv::Chunk& wide, const kv::NewChunk& chunk) {
  Variants variants(wide.variants.begin(), wide.variants.end());
  std::ranges::stable_partition(
      variants, [&](const auto& variant) { return variant.first == kv::registered_key(chunk); });
  const bool has_kv = !variants.empty() && variants.front().first == kv::registered_key(chunk);
  if (core.needs_kv(chunk) && !has_kv) {
    return no_kv(wide, "; compose it once, then narrow it");
  }
  const auto first = has_kv ? std::optional(variants.front().first) : std::nullopt;
  if (first) {
    kv::BlockCounts blocks;
    core.add_blocks(chunk, blocks);
    QUIRE_TRY_STATUS(
        core.registry.room().make_room({.salt = chunk.salt,
                                        .bytes = core.registry.room().bytes_for(chunk),
                                        .lacking = core.ledger().bytes_lacking(blocks)}));
  }
  QUIRE_TRY([[maybe_unused]] const kv::Chunk* begun, core.registry.begin(chunk, first, true));
  kernels::KVErrorSums sums;
  QUIRE_TRY_STATUS(convert_all(core, chunk, variants, sums));
  core.registry.finish(chunk.id,
                       kv_error_of(sums, core.engine.core().paged_pool.geometry(chunk.format)));
  return {};
}

// Keeps a chunk from eviction while it lives, also where memory is refused meanwhile.
class Held {
 public:
  Held(kv::ChunkRegistry& registry, std::string_view id)
      : registry_(registry), hold_(registry.usage().hold(id)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  Held(Held&&) = delete;
  Held& operator=(Held&&) = delete;
  ~Held() { registry_.usage().release(hold_); }

 private:
  kv::ChunkRegistry& registry_;
  kv::ChunkHold hold_;
};

}  // namespace

Status check_computable(const ChunkCore& core, const kv::Chunk& chunk, const kv::VariantKey& key) {
  if (!chunk.converted || key != kv::registered_key(chunk)) {
    return {};
  }
  const std::int32_t block_tokens = core.engine.core().paged_pool.geometry().block_tokens;
  return no_kv(chunk,
               base::str_cat(", and no prefill computes what narrowing made of it; if it was "
                             "saved with another block_tokens than ",
                             block_tokens,
                             ", open the model with that one, or register the text and "
                             "narrow it again"));
}

Result<std::optional<kv::FormatId>> narrower_format(const ChunkCore& core,
                                                    const kv::NewChunk& chunk,
                                                    const std::optional<std::string>& kv_dtype) {
  const std::string stored = core.kv_name(chunk.format);
  if (!kv_dtype || *kv_dtype == stored) {
    return std::optional<kv::FormatId>();
  }
  if (bits_of(*kv_dtype) == 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv_dtype ", base::quoted(*kv_dtype), " is unknown; the chunk has ",
                          base::quoted(stored))};
  }
  if (bits_of(*kv_dtype) >= bits_of(stored)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv_dtype ", base::quoted(*kv_dtype), " is not narrower than ",
                          base::quoted(stored),
                          ", which the chunk's KV is stored in, and what was rounded is lost; "
                          "register the chunk's text with that kv_dtype")};
  }
  QUIRE_TRY(const kv::FormatId format, core.format_for(*kv_dtype));
  return std::optional(format);
}

Result<const kv::Chunk*> narrow(ChunkCore& core, const std::string& id, kv::NewChunk chunk,
                                kv::FormatId to) {
  chunk.id = kv::narrowed_id(id, core.kv_name(to));
  chunk.format = to;
  chunk.converted = true;
  chunk.text_id.clear();  // its text finds the chunk that registering makes
  chunk.kv_error.reset();
  if (const kv::Chunk* known = core.registry.find(chunk.id, chunk.salt)) {
    if (!core.needs_kv(*known) || known->variants.contains(kv::registered_key(*known))) {
      core.registry.merge(chunk);
      return known;
    }
    core.registry.remove(chunk.id, kv::Removal::kDeleted);  // its KV was not readable here
  }
  const Held wide(core.registry, id);  // it must not make way
  const Status begun = begin_converted(core, *core.registry.find(id), chunk);
  return !begun.ok() ? Result<const kv::Chunk*>(begun.error())
                     : core.registry.get(chunk.id, chunk.salt);
}

}  // namespace quire::chunks
