// The shelves: one allocation that holds the bytes of all KV blocks of all layers.
//
// Thread rule: the engine thread calls; kernels write through views on pool threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/ids.h"
#include "quire/device/aligned_buffer.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {

// Layout [layer][kv_head][block], so that consecutive block ids of a head are consecutive bytes.
class PagedStore {
 public:
  // Reserves address space for `num_blocks` (huge pages advised; the system provides pages at first
  // write). kInvalidArgument naming the field for a geometry outside its ranges or num_blocks < 1;
  // kOutOfBlocks with both numbers when the blocks exceed the machine's memory or it refuses.
  [[nodiscard]] static Result<PagedStore> create(const tensor::KVGeometry& geometry,
                                                 std::int32_t num_blocks);

  // The bytes of one layer. Valid while the store lives.
  [[nodiscard]] tensor::PagedKVView view(int layer) const;

  // Copies the first `tokens` slots of a block in all layers and heads; an odd count may copy one
  // slot of V more, because bf16 stores V in token pairs. Preconditions (QUIRE_CHECK): both blocks
  // exist, tokens in 0..block_tokens. Bytes moved: twice block_bytes() * tokens / block_tokens.
  void copy(const kv::BlockCopy& copy);

  // Copies `count` slots of the run in `from`, beginning with slot `first`, to the first slots of
  // the run in `to`, in all layers and heads. Preconditions (QUIRE_CHECK): the blocks exist and
  // have the slots, and no block is in both.
  void copy_run(std::span<const BlockId> from, std::int32_t first, std::int32_t count,
                std::span<const BlockId> to);

  // K and V of `count` blocks with neighbouring ids of one head: consecutive bytes. Preconditions
  // (QUIRE_CHECK): the layer, head and blocks exist. Valid while the store lives.
  [[nodiscard]] std::span<std::byte> head_blocks(int layer, int head, BlockId first,
                                                 std::int32_t count = 1);
  [[nodiscard]] std::span<const std::byte> head_blocks(int layer, int head, BlockId first,
                                                       std::int32_t count = 1) const;

  // The first `tokens` slots of one head block in place; every other byte of `to`, which is as
  // large as a head block, becomes zero, so that nothing else's KV leaves the shelves.
  // Preconditions (QUIRE_CHECK): as for head_blocks, tokens in 0..block_tokens.
  void read_slots(int layer, int head, BlockId block, int tokens, std::span<std::byte> to) const;

  [[nodiscard]] const tensor::KVGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::int32_t num_blocks() const { return num_blocks_; }

 private:
  [[nodiscard]] std::size_t head_offset(int layer, int head, BlockId first,
                                        std::int32_t count) const;
  PagedStore() = default;
  tensor::KVGeometry geometry_;
  std::int32_t num_blocks_ = 0;
  device::AlignedBuffer<std::byte> bytes_;
};

// The ranges that create() demands: kInvalidArgument naming the field, kUnsupported for a dtype.
[[nodiscard]] Status check_geometry(const tensor::KVGeometry& geometry);

// Blocks that fit into `budget_bytes`, at least 0. A geometry that create() would refuse gives 0.
[[nodiscard]] std::int32_t blocks_in_budget(const tensor::KVGeometry& geometry,
                                            std::int64_t budget_bytes);

}  // namespace quire::kv_store
