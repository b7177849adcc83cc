// Pools whose format is written block by block: what they need beside their blocks (ADR 0034).
#pragma once

#include <cstdint>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::engine {

// Returns kInvalidArgument where the format does not take blocks of so many tokens.
[[nodiscard]] Status check_block_tokens(const tensor::KVGeometry& geometry);

// Gives such a pool the plain format of open blocks, and the ledger slabs for them. Slabs for
// `open_blocks` stay with the format, if they are at most a quarter of the pool.
// kInvalidArgument for a pool that is too small.
[[nodiscard]] Status add_open_format(kv_store::PagedPool& pool, kv::LedgerConfig& ledger,
                                     std::int64_t open_blocks);

// Makes the blocks that a step of `step_tokens` rows begins and fills. They are of one layer, since
// each layer stores them before the next begins. Where layers differ in their KV, there is one for
// each size of a layer. On `accelerator`, or in host memory without one. kOutOfBlocks when there is
// no memory; kDevice only on an accelerator.
[[nodiscard]] Result<kv_store::PagedPool> make_staging(const tensor::KVGeometry& geometry,
                                                       std::int32_t step_tokens,
                                                       device::Accelerator* accelerator = nullptr);

// Returns for each layer of `geometry` the view of the blocks that make_staging() made for it.
[[nodiscard]] std::vector<tensor::PagedKVView> staging_views(const kv_store::PagedPool& staging,
                                                             const tensor::KVGeometry& geometry);

}  // namespace quire::engine
