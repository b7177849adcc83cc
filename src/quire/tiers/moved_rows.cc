#include "quire/tiers/moved_rows.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kernels/kv_seal.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::tiers {
namespace {

// Opens blocks layer by layer. Those of a device's pool are opened in host memory.
Status open_whole(engine::Engine& engine, std::span<const BlockId> from, kv::FormatId stored,
                  std::span<const BlockId> to, kv::FormatId format) {
  kv_store::PagedPool& pool = engine.core().paged_pool;
  const bool on_device = pool.on_device();
  std::vector<kernels::BlockPair> pairs;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto number = static_cast<std::int32_t>(i);
    pairs.push_back(on_device ? kernels::BlockPair{.from = number, .to = number}
                              : kernels::BlockPair{.from = from[i].value, .to = to[i].value});
  }
  const int head_dim = engine.model_config().head_dim;
  for (int layer = 0; layer < pool.geometry().layers && !pairs.empty(); ++layer) {
    if (!on_device) {
      kernels::open_blocks(engine.context(), pairs, head_dim, pool.view(layer, stored),
                           pool.view(layer, format));
      continue;
    }
    QUIRE_TRY(const kv_store::PagedPool coded, pool.copy_of_layer(layer, from, stored));
    QUIRE_TRY(kv_store::PagedPool plain, pool.copy_of_layer(layer, to, format));
    kernels::open_blocks(engine.context(), pairs, head_dim, coded.view(0), plain.view(0));
    QUIRE_TRY_STATUS(pool.write_layer(layer, to, plain.all_bytes(), format));
  }
  return {};
}

// Opens the blocks that have the rows. Those that are open already are copied. Engine thread.
Status open_rows(engine::Engine& engine, const RunRows& rows, std::span<const BlockId> to,
                 kv::FormatId format) {
  kv_store::PagedPool& pool = engine.core().paged_pool;
  const std::int32_t block_tokens = pool.geometry().block_tokens;
  std::int32_t next = -rows.first / block_tokens;  // place of a block among those of `to`
  for (const auto& [blocks, stored] : rows.parts) {
    std::vector<BlockId> sources, targets;
    for (const BlockId block : blocks) {
      if (const std::int32_t at = next++; at >= 0 && at < std::ssize(to)) {
        sources.push_back(block);
        targets.push_back(to[static_cast<std::size_t>(at)]);
      }
    }
    if (stored != format) {
      QUIRE_TRY_STATUS(open_whole(engine, sources, stored, targets, format));
      continue;
    }
    for (std::size_t i = 0; i < sources.size(); ++i) {
      QUIRE_TRY_STATUS(pool.copy(
          {.from = {sources[i]}, .to = {targets[i]}, .tokens = block_tokens, .format = format}));
    }
  }
  return {};
}

}  // namespace

Result<HeldRef> copy_rows(engine::Engine& engine, TierService& tiers, const RunRows& rows) {
  kv_store::PagedPool& pool = engine.core().paged_pool;
  const kv::LedgerConfig& config = engine.core().ledger.config();
  const auto& [blocks, stored] = rows.parts.front();
  const kv::FormatId format = config.formats[stored.value].open.value_or(stored);
  const auto count = static_cast<std::int32_t>(rows.tokens.size());
  const auto reserve = [&](std::vector<TokenId> tokens) {
    return tiers.reserve({.tokens = std::move(tokens), .format = format, .last_format = format},
                         rows.stored_from);
  };
  QUIRE_TRY(HeldRef copy, reserve(rows.tokens));
  if (format == stored) {
    QUIRE_TRY_STATUS(pool.copy_run(blocks, rows.first, count, copy->blocks, format));
    return copy;
  }
  const std::int32_t begin = rows.first % config.block_tokens;
  const std::int32_t whole =
      (begin + count + config.block_tokens - 1) / config.block_tokens * config.block_tokens;
  QUIRE_TRY(const HeldRef opened, reserve(std::vector<TokenId>(static_cast<std::size_t>(whole))));
  QUIRE_TRY_STATUS(
      engine.thread().ask_status([&] { return open_rows(engine, rows, opened->blocks, format); }));
  QUIRE_TRY_STATUS(pool.copy_run(opened->blocks, begin, count, copy->blocks, format));
  return copy;
}

}  // namespace quire::tiers
