#include "quire/chunks/chunk_core.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_setup.h"
#include "quire/chunks/saved_chunks.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/engine.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::chunks {

namespace {

kv::RegistryConfig registry_config(const ChunkCacheOptions& options, const kv::Ledger& ledger,
                                   decltype(kv::RegistryConfig::known_elsewhere) known_elsewhere) {
  const double blocks = options.chunk_memory_ratio * ledger.config().num_blocks;
  return {.max_chunks = options.max_chunks,
          .max_blocks = static_cast<std::int32_t>(blocks),
          .known_elsewhere = std::move(known_elsewhere)};
}

}  // namespace

ChunkCore::ChunkCore(engine::Engine& on, tiers::TierService& in, const ChunkCacheOptions& how,
                     WhyNotFound why_not_found)
    : engine(on),
      tiers(in),
      options(how),
      registry(registry_config(options, ledger(), std::move(why_not_found)), ledger()) {}

kv::Ledger& ChunkCore::ledger() const { return engine.core().ledger; }

const ChunkSetup& ChunkCore::setup() const {
  std::call_once(setup_once_,
                 [this] { setup_ = make_chunk_setup(engine.core().bundle, options.chunk_format); });
  return setup_;
}

bool ChunkCore::windowed() const {
  return std::ranges::any_of(engine.model_config().window_tokens,
                             [](std::int32_t window) { return window > 0; });
}

bool ChunkCore::needs_kv(const kv::NewChunk& chunk) const {
  return chunk.type != ChunkType::kQuery && !windowed();
}

std::optional<TokenId> ChunkCore::bos_token() const {
  return engine.text() == nullptr ? engine.model_config().bos_token_id
                                  : engine.text()->tokenizer.bos_token_id();
}

std::int64_t ChunkCore::lacking(std::int64_t blocks) const {
  const std::int64_t lacks = blocks - ledger().blocks_available();
  return !engine.requests().empty() || lacks <= 0
             ? 0
             : lacks * ledger().config().block_bytes(kv::kOwnFormat);
}

}  // namespace quire::chunks
