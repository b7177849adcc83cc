#include "quire/chunks/chunk_core.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_maps.h"
#include "quire/chunks/chunk_setup.h"
#include "quire/chunks/layer_blend.h"
#include "quire/chunks/saved_chunks.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/bundle_options.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/coalescing.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/config.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::chunks {

namespace {

kv::RegistryConfig registry_config(const ChunkCacheOptions& options, engine::Engine& engine,
                                   decltype(kv::RegistryConfig::known_elsewhere) known_elsewhere) {
  const double blocks = options.chunk_memory_ratio * engine.core().ledger.config().num_blocks;
  return {
      .max_chunks = options.max_chunks,
      .max_blocks = static_cast<std::int32_t>(blocks),
      .known_elsewhere = std::move(known_elsewhere),
      .blocks_beside = [&engine](std::int64_t tokens) { return most_map_blocks(engine, tokens); }};
}

// Returns whether KV of a format is another than that of the pool's own. Floats of at least its
// bits are the same KV, rounded finer; codes are not, and floats are not what codes stand for.
bool changes_kv(const tensor::KVGeometry& format, const tensor::KVGeometry& own) {
  const bool floats =
      format.format == tensor::KVFormat::kPlain && own.format == tensor::KVFormat::kPlain;
  return !floats || tensor::dtype_bytes(format.dtype) < tensor::dtype_bytes(own.dtype);
}

}  // namespace

ChunkCore::ChunkCore(engine::Engine& on, tiers::TierService& in, const ChunkCacheOptions& how,
                     WhyNotFound why_not_found)
    : engine(on),
      tiers(in),
      options(how),
      registry(registry_config(options, on, std::move(why_not_found)), ledger()) {}

kv::Ledger& ChunkCore::ledger() const { return engine.core().ledger; }

const ChunkSetup& ChunkCore::setup() const {
  std::call_once(setup_once_,
                 [this] { setup_ = make_chunk_setup(engine.core().bundle, options.chunk_format); });
  return setup_;
}

bool ChunkCore::has_states() const { return engine.model_config().state_layers() > 0; }

std::int32_t ChunkCore::map_blocks(std::int64_t tokens) const {
  return most_map_blocks(engine, tokens);
}

Status ChunkCore::check_mode(const CompositionSpec& spec) const {
  const model::ModelConfig& config = engine.model_config();
  if (spec.mode != ReuseMode::kBlend || is_by_layers(spec.blend)) {
    return {};
  }
  if (!has_states()) {
    return {};
  }
  return {ErrorCode::kIncompatible,
          base::str_cat("mode ", reuse_mode_name(spec.mode), ": ", config.state_layers(), " of ",
                        config.layers, " layers (", model::mixer_name(config.state.kind),
                        ") carry a state through the chunks, and a token that is computed again "
                        "changes all behind it; use mode anchored, independent or exact, or "
                        "recompute_layers")};
}

Status ChunkCore::check_runs_some_layers(std::string_view what) const {
  if (engine.core().paged_pool.on_device()) {
    return {ErrorCode::kUnsupported,
            base::str_cat(what,
                          " runs some layers alone, which a GPU does not do yet; "
                          "open the model with device=\"cpu\"")};
  }
  return {};
}

kv::ModelShape ChunkCore::model_shape() const {
  kv::ModelShape shape{.has_states = has_states(), .layers = engine.model_config().layers};
  const kv_store::PagedPool& pool = engine.core().paged_pool;
  for (std::uint8_t i = 1; i < engine.core().num_formats(); ++i) {
    shape.changes_kv[i] = changes_kv(pool.geometry(kv::FormatId{i}), pool.geometry());
  }
  return shape;
}

bool ChunkCore::needs_kv(const kv::NewChunk& chunk) const {
  return chunk.type != ChunkType::kQuery;
}

std::optional<TokenId> ChunkCore::bos_token() const {
  return engine.text() == nullptr ? engine.model_config().bos_token_id
                                  : engine.text()->tokenizer.bos_token_id();
}

std::int64_t ChunkCore::lacking(const kv::BlockCounts& blocks) const {
  return engine.requests().empty() ? ledger().bytes_lacking(blocks) : 0;
}

Result<std::int64_t> ChunkCore::coalesce() {
  const std::int32_t freed = registry.room().coalesce(std::numeric_limits<std::int32_t>::max());
  if (freed > 0) {
    QUIRE_TRY_STATUS(engine.copy_blocks_now());
  }
  return freed;
}

Status ChunkCore::make_readable(std::span<const kv::SegmentId> segments) const {
  kv::Coalescing& coalescing = ledger().coalescing();
  if (std::ranges::none_of(segments, [&](kv::SegmentId id) { return coalescing.is_moved(id); })) {
    return {};
  }
  QUIRE_TRY_STATUS(coalescing.take_out(segments));
  return engine.copy_blocks_now();
}

std::optional<ChunkCore::RequestEnd> ChunkCore::end_to_await(kv::BlockCounts blocks) const {
  blocks[kv::kOwnFormat] = 0;
  return engine.requests().empty() || ledger().bytes_lacking(blocks) == 0
             ? std::nullopt
             : std::optional(engine.requests().next_end());
}

Status ChunkCore::await(const RequestEnd& end, const Interrupt& interrupted) {
  if (!interrupted) {
    end.wait();
    return {};
  }
  while (end.wait_for(std::chrono::milliseconds(kInterruptPollMs)) != std::future_status::ready) {
    if (interrupted()) {
      return {ErrorCode::kCancelled, "the call was interrupted"};
    }
  }
  return {};
}

void ChunkCore::add_blocks(const kv::NewChunk& chunk, kv::BlockCounts& blocks) const {
  const auto tokens = std::ssize(*chunk.tokens);
  kv::add(ledger().config().blocks_for(tokens, chunk.format), blocks);
  blocks[kv::kOwnFormat] += map_blocks(tokens);
}

Result<kv::FormatId> ChunkCore::format_for(std::string_view kv_dtype) const {
  const engine::EngineCore& core = engine.core();
  const auto format = kv_dtype.empty() ? kv::kOwnFormat : core.find_format(kv_dtype);
  if (format) {
    return *format;
  }
  constexpr std::string_view kKnown[] = {"float32", "bfloat16", "float16", "fp8", "int8", "int4"};
  if (std::ranges::find(kKnown, kv_dtype) == std::end(kKnown)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv_dtype must be one of \"float32\", \"bfloat16\", \"float16\", "
                          "\"fp8\", \"int8\", \"int4\", not ",
                          base::quoted(kv_dtype), "; the pool has ", base::quoted(core.kv_name()))};
  }
  const Lack lack = lack_of(kv_dtype);
  std::string others;
  for (std::uint8_t i = 1; i < core.num_formats(); ++i) {
    others += base::str_cat(" or ", base::quoted(core.kv_name(kv::FormatId{i})));
  }
  return {
      ErrorCode::kUnsupported,
      base::str_cat("kv_dtype ", base::quoted(kv_dtype), " of a chunk is not the pool's, which is ",
                    base::quoted(core.kv_name()), lack.why,
                    others.empty() ? "; leave it out" : "; give that one", others, lack.way_out)};
}

ChunkCore::Lack ChunkCore::lack_of(std::string_view kv_dtype) const {
  const kv_store::PagedPool& pool = engine.core().paged_pool;
  if (const auto coded = engine::coded_kv_format(kv_dtype);
      coded && !engine::check_kv_format(engine.model_config(), *coded, pool.on_device()).ok()) {
    return {", and a GPU stores heads of this model's size as floats alone",
            ", or open the model with device=\"cpu\""};
  }
  if (kv_dtype == "int4" && pool.geometry().block_tokens % tensor::kInt4RunTokens != 0) {
    return {", and int4 takes a block_tokens that is a multiple of 32",
            ", or open the model with block_tokens=32"};
  }
  if (pool.on_device() && kv_dtype.find("float") != std::string_view::npos) {
    return {", and a GPU holds floats in the type that it computes in",
            ", or open the model with that dtype"};
  }
  if (kv_dtype == "float16") {
    return {", and the CPU computes in float32 or bfloat16", ""};
  }
  return {", and kv_budget is too small for blocks of another one", ", or raise kv_budget"};
}

std::string ChunkCore::kv_name(kv::FormatId format) const { return engine.core().kv_name(format); }

}  // namespace quire::chunks
