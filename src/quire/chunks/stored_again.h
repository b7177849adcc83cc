// KV that is stored once more: blocks whose KV goes to other blocks, of any formats.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/block_pool.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"

namespace quire::chunks {

// A block, and the one that gets its KV.
struct StoredAgain {
  kv::BlockRef from, to;
  std::int32_t tokens = 0;  // all of them where `to` is written as a whole
};

// Holds what storing works on. Borrows both.
struct StoreContext {
  const kernels::KernelContext& kernels;
  kv_store::PagedPool& pool;
};

// Stores the KV of blocks in others, distinct ones, and adds to `sums` what codes change. A block
// of one format is copied. Another one is opened and stored as its format says, from the numbers
// that its codes stand for. Fails with kUnsupported for KV that codes cannot hold, with
// kOutOfBlocks without memory beside the pool, and with kDevice on an accelerator alone. The blocks
// hold anything then. Cost: O(tokens), on all threads of the pool.
[[nodiscard]] Status store_again(const StoreContext& context, std::span<const StoredAgain> blocks,
                                 kernels::KVErrorSums& sums);

}  // namespace quire::chunks
