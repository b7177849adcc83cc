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
#include "quire/chunks/segment_kv.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/kv_seal.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/block_table.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_room.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {
namespace {

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

// A segment whose KV is converted, and the one that gets it.
struct Conversion {
  const kv::Segment& from;
  const kv::Segment& to;
  const SegmentKV& read;
  SegmentKV& written;
};

tensor::KVSlot slot_of(const SegmentKV& blocks, std::int32_t token, std::int32_t block_tokens) {
  return {.block = blocks.block(token / block_tokens), .offset = token % block_tokens};
}

// Stores the KV of one segment as int8 in the blocks of another one, and adds what that changes.
Status encode_tokens(const tensor::KVGeometry& geometry, const Conversion& what,
                     kernels::KVErrorSums& sums) {
  const auto dim = static_cast<std::size_t>(geometry.stored_head_dim());
  std::vector<float> k(dim), v(dim);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const tensor::PagedKVView source = what.read.view(layer, 0);
    const tensor::PagedKVView target = what.written.view(layer, 0);
    for (std::int32_t token = 0; token < what.from.num_tokens(); ++token) {
      const tensor::KVSlot in = slot_of(what.read, token, geometry.block_tokens);
      const tensor::KVSlot out = slot_of(what.written, token, geometry.block_tokens);
      for (int head = 0; head < geometry.kv_heads; ++head) {
        kernels::read_key(source, head, in, k);
        kernels::read_value(source, head, in, v);
        if (!kernels::store_int8(target, head, out, k, v)) {
          return model::kv_refused(token);
        }
        kernels::add_errors(target, head, out, k, v, sums);
      }
    }
  }
  return {};
}

// Stores the KV of one segment block by block in the blocks of another one. A last block that is
// not full is opened as plain numbers, or stays what it is where both segments have it so.
Status seal_segment(ChunkCore& core, const Conversion& what, kernels::KVErrorSums& sums) {
  const tensor::KVGeometry& geometry = core.engine.core().paged_pool.geometry();
  const std::int32_t full = what.from.num_tokens() / geometry.block_tokens;
  const std::int32_t count = what.from.blocks().size();
  std::vector<kernels::BlockPair> pairs;
  pairs.reserve(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    pairs.push_back({.from = what.read.block(i), .to = what.written.block(i)});
  }
  const auto whole = std::span(pairs).first(static_cast<std::size_t>(full));
  const auto rest = std::span(pairs).subspan(static_cast<std::size_t>(full));
  const bool opens =
      !rest.empty() && what.from.blocks().last_format() != what.to.blocks().last_format();
  const int head_dim = core.engine.model_config().head_dim;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    std::vector<kernels::KVErrorSums> errors(whole.size());
    std::vector<std::uint8_t> refused(whole.size());
    const kernels::SealParams params = {
        .blocks = whole, .head_dim = head_dim, .refused = refused, .errors = errors};
    if (!whole.empty() &&
        !kernels::seal_blocks(core.engine.context(), params, what.read.view(layer, 0),
                              what.written.view(layer, 0))) {
      const auto block = std::ranges::find(refused, std::uint8_t{1}) - refused.begin();
      return model::kv_refused(block * geometry.block_tokens);
    }
    for (const kernels::KVErrorSums& block : errors) {
      sums.add(block);
    }
    if (opens) {
      kernels::open_blocks(core.engine.context(), rest, head_dim, what.read.view(layer, count - 1),
                           what.written.view(layer, count - 1));
    }
  }
  return {};
}

// Copies a last block that both segments store alike.
Status copy_last(ChunkCore& core, const kv::Segment& from, const kv::Segment& to) {
  kv_store::PagedPool& pool = core.engine.core().paged_pool;
  const std::int32_t tokens = from.num_tokens() % pool.geometry().block_tokens;
  if (tokens == 0 || from.blocks().last_format() != to.blocks().last_format()) {
    return {};
  }
  return pool.copy({.from = from.blocks().ref(from.blocks().size() - 1).id,
                    .to = to.blocks().ref(to.blocks().size() - 1).id,
                    .tokens = tokens,
                    .format = to.blocks().last_format()});
}

// Converts the KV of a segment to that of another one, which was made for another format.
Status convert(ChunkCore& core, const kv::Segment& from, const kv::Segment& to, kv::FormatId format,
               kernels::KVErrorSums& sums) {
  kv_store::PagedPool& pool = core.engine.core().paged_pool;
  QUIRE_TRY(const SegmentKV read, SegmentKV::open(pool, from.blocks(), true));
  QUIRE_TRY(SegmentKV written, SegmentKV::open(pool, to.blocks(), false));
  const Conversion what{from, to, read, written};
  const tensor::KVGeometry& geometry = pool.geometry(format);
  if (!tensor::is_written_by_block(geometry.format)) {
    QUIRE_TRY_STATUS(encode_tokens(geometry, what, sums));
    return written.write_back();
  }
  QUIRE_TRY_STATUS(seal_segment(core, what, sums));
  QUIRE_TRY_STATUS(written.write_back());
  return copy_last(core, from, to);
}

// Returns a segment with the KV of `id` in another format.
Result<kv::SegmentId> converted(ChunkCore& core, kv::SegmentId id, kv::FormatId to,
                                kernels::KVErrorSums& sums) {
  kv::Segments& segments = core.ledger().segments();
  const kv::Segment* const from = segments.find(id);
  QUIRE_TRY_STATUS(core.tiers.background_loads().outcome(kv::parts_of(from->blocks())));
  QUIRE_TRY(
      const kv::SegmentId made,
      segments.reserve({from->tokens().begin(), from->tokens().end()}, from->stored_from(), to));
  Status status = core.engine.copy_blocks_now();
  if (status.ok()) {
    status = convert(core, *from, *segments.find(made), to, sums);
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

// Begins the chunk and converts its KV, the one that it is registered with first. Other KV is left
// out where there is no room for it: it is computed where it is used.
Status begin_converted(ChunkCore& core, const kv::Chunk& wide, const kv::NewChunk& chunk) {
  std::vector<std::pair<kv::VariantKey, kv::SegmentId>> variants(wide.variants.begin(),
                                                                 wide.variants.end());
  std::ranges::stable_partition(
      variants, [&](const auto& variant) { return variant.first == kv::registered_key(chunk); });
  const auto first =
      variants.empty() ? std::nullopt : std::optional<kv::VariantKey>(variants.front().first);
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
  for (const auto& [key, segment] : variants) {
    const kv::VariantName name{chunk.id, key};
    Status converted = key == first ? Status() : core.registry.variants().begin({&name, 1});
    if (converted.ok()) {
      converted = convert_variant(core, chunk.id, key, segment, chunk.format, sums);
    }
    if (!converted.ok() && key == first) {
      return converted;  // the registry has forgotten the chunk
    }
  }
  core.registry.finish(chunk.id,
                       kv_error_of(sums, core.engine.core().paged_pool.geometry(chunk.format)));
  return {};
}

}  // namespace

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
                          ", which the chunk's KV is stored in; register the text in a model that "
                          "is open with that kv_dtype")};
  }
  const auto format = core.engine.core().find_format(*kv_dtype);
  if (!format || stored == "fp8") {  // what fp8 holds is not quantised again
    return {ErrorCode::kUnsupported,
            base::str_cat("a chunk cannot be narrowed from ", base::quoted(stored), " to ",
                          base::quoted(*kv_dtype), " here; open the model with that kv_dtype")};
  }
  return format;
}

Result<const kv::Chunk*> narrow(ChunkCore& core, const std::string& id, kv::NewChunk chunk,
                                kv::FormatId to) {
  chunk.id = kv::narrowed_id(id, core.kv_name(to));
  chunk.format = to;
  chunk.converted = true;
  chunk.text_id.clear();  // its text finds the chunk that registering makes
  chunk.kv_error.reset();
  if (const kv::Chunk* known = core.registry.find(chunk.id, chunk.salt)) {
    core.registry.merge(chunk);
    return known;
  }
  const kv::Chunk* const wide = core.registry.find(id);
  const kv::ChunkHold hold = core.registry.usage().hold(id);  // it must not make way
  const Status begun = begin_converted(core, *wide, chunk);
  core.registry.usage().release(hold);
  return !begun.ok() ? Result<const kv::Chunk*>(begun.error())
                     : core.registry.get(chunk.id, chunk.salt);
}

}  // namespace quire::chunks
