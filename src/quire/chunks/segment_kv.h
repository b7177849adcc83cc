// SegmentKV: the KV of some blocks where the CPU reads and writes it. That is the pool itself, or a
// copy in host memory of what a GPU has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::chunks {

// Borrows the pool and the blocks. The engine thread calls.
class SegmentKV {
 public:
  // With `reads` a copy has what the blocks hold; else its bytes are zero until they are written.
  // kOutOfBlocks without memory for a copy; kDevice only on an accelerator.
  [[nodiscard]] static Result<SegmentKV> open(kv_store::PagedPool& pool,
                                              std::span<const kv::BlockRef> blocks, bool reads);

  // Returns the view of a layer that has the block with this index.
  [[nodiscard]] tensor::PagedKVView view(int layer, std::int32_t index) const;
  // Returns the number of a block in that view.
  [[nodiscard]] std::int32_t block(std::int32_t index) const;
  // Writes a copy to the pool.
  [[nodiscard]] Status write_back();

 private:
  // Consecutive blocks of one format.
  struct Part {
    kv::FormatId format;
    std::int32_t first = 0;
    std::vector<BlockId> blocks;
    std::optional<kv_store::PagedPool> copy;
  };

  explicit SegmentKV(kv_store::PagedPool& pool) : pool_(&pool) {}
  [[nodiscard]] const Part& part_of(std::int32_t index) const;

  kv_store::PagedPool* pool_;
  std::vector<Part> parts_;
};

}  // namespace quire::chunks
