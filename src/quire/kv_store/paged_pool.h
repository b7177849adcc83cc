// PagedPool: one allocation that holds the bytes of all KV blocks of all layers, in host memory
// or on an accelerator.
//
// Thread rule: the engine thread calls; kernels write through views on pool threads. read_blocks
// and write_blocks: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/accelerator.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/kv_store/device_paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {

// Layout [layer][stored head][block], so that consecutive block ids of a head are consecutive
// bytes.
//
// Blocks of several formats may share these bytes (ADR 0032). To each format the bytes of a head
// are one array of blocks of its own size. The ledger says which of them may be used. All methods
// take the pool's own format where none is given.
//
// Where layers have heads of several sizes, `head` below counts stored heads (KVGeometry). The
// stored heads of a larger head take turns, block after block.
class PagedPool {
 public:
  // Reserves address space for `num_blocks` (huge pages advised; the system provides pages at first
  // write). kInvalidArgument names the field for a geometry outside its ranges or num_blocks < 1.
  // kOutOfBlocks with both numbers when the blocks exceed the machine's memory, or it refuses.
  // `whole_blocks`: so many blocks have the bytes of all that will be there at once. The others are
  // address space, for blocks without their window part. 0: all.
  [[nodiscard]] static Result<PagedPool> create(const tensor::KVGeometry& geometry,
                                                std::int32_t num_blocks,
                                                std::int32_t whole_blocks = 0);
  // Adds a format: from now on the bytes are blocks of this geometry too. Returns its name, which
  // is the next number. kInvalidArgument names the field that is not as in the pool's own geometry
  // and has to be. Before any other thread uses the pool.
  [[nodiscard]] Result<kv::FormatId> add_format(const tensor::KVGeometry& geometry);
  // Makes the pool on `accelerator`, which outlives it; errors of make_device_paged_pool.
  [[nodiscard]] static Result<PagedPool> create_on(device::Accelerator& accelerator,
                                                   const tensor::KVGeometry& geometry,
                                                   std::int32_t num_blocks);

  // Makes a pool of a format's geometry in host memory, for KV on its way from or to this one.
  // Errors of create().
  [[nodiscard]] Result<PagedPool> create_beside(std::int32_t num_blocks,
                                                kv::FormatId format = {}) const;
  // Returns host memory for read_blocks and write_blocks of this pool; size() == 0 when the system
  // refuses.
  [[nodiscard]] device::HostBuffer host_buffer(std::size_t bytes) const;

  // Returns a view of the bytes of one layer as blocks of a format. Valid while the pool lives.
  [[nodiscard]] tensor::PagedKVView view(int layer, kv::FormatId format = {}) const;

  // Copies slots of a block in all layers and heads. Where these are the first of both blocks, up
  // to three more slots of V may be copied, because tokens share words of V. Blocks that are
  // written whole are copied whole. Preconditions (QUIRE_CHECK): both blocks exist and have the
  // slots, which are the first ones where blocks are written whole. Bytes moved: twice
  // block_bytes() * tokens / block_tokens. Fails only on an accelerator, with kDevice or
  // kOutOfBlocks.
  [[nodiscard]] Status copy(const kv::BlockCopy& copy);

  // Gives the memory of blocks back to the system, in layers with a window or in the others, with
  // its contents. `blocks` ascend. A page goes when all blocks in it `is_gone`. Host memory alone.
  void give_back(std::span<const BlockId> blocks, kv::BlockCopy::Parts parts,
                 const std::function<bool(BlockId)>& is_gone);

  // Copies `count` slots of the run in `from`, from slot `first` on, to the first slots of the run
  // in `to`. Does so in all layers and heads. Preconditions (QUIRE_CHECK): the blocks exist and
  // have the slots, and no block is in both.
  [[nodiscard]] Status copy_run(std::span<const BlockId> from, std::int32_t first,
                                std::int32_t count, std::span<const BlockId> to,
                                kv::FormatId format = {});

  // Copies all head blocks [layer][head][block] of `blocks` to host memory, in its layout;
  // write_blocks copies them back. Preconditions (QUIRE_CHECK): the blocks exist, the span is
  // bytes_of() these parts for each, which are all on an accelerator. Fails only there.
  [[nodiscard]] Status read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to,
                                   kv::FormatId format = {},
                                   kv::BlockCopy::Parts parts = kv::BlockCopy::Parts::kAll) const;
  [[nodiscard]] Status write_blocks(std::span<const BlockId> blocks,
                                    std::span<const std::byte> from, kv::FormatId format = {},
                                    kv::BlockCopy::Parts parts = kv::BlockCopy::Parts::kAll);
  // Returns the bytes of a block in layers with a window, in the others, or in all. O(layers).
  [[nodiscard]] std::int64_t bytes_of(kv::BlockCopy::Parts parts, kv::FormatId format = {}) const;
  // Copies one layer so: [head][block].
  [[nodiscard]] Status write_layer(int layer, std::span<const BlockId> blocks,
                                   std::span<const std::byte> from, kv::FormatId format = {});

  // Returns a pool of one layer and format in host memory, whose blocks 0, 1, ... are copies of
  // `blocks`. Preconditions (QUIRE_CHECK): the layer and the blocks exist, at least one.
  // kOutOfBlocks when the system has no memory; kDevice only on an accelerator.
  [[nodiscard]] Result<PagedPool> copy_of_layer(int layer, std::span<const BlockId> blocks,
                                                kv::FormatId format = {}) const;

  // Returns K and V of `count` blocks with neighbouring ids of one head: consecutive bytes.
  // Preconditions (QUIRE_CHECK): the pool is in host memory; the layer, head and blocks exist.
  // Valid while the pool lives.
  [[nodiscard]] std::span<std::byte> head_blocks(int layer, int head, BlockId first,
                                                 std::int32_t count = 1, kv::FormatId format = {});
  [[nodiscard]] std::span<const std::byte> head_blocks(int layer, int head, BlockId first,
                                                       std::int32_t count = 1,
                                                       kv::FormatId format = {}) const;

  // Returns the bytes of all blocks in host memory, in the order of read_blocks.
  [[nodiscard]] std::span<std::byte> all_bytes() {
    return bytes_.span().first(static_cast<std::size_t>(geometry_.block_bytes() * num_blocks_));
  }

  // Copies the first `tokens` slots of one head block to their places in `to`, which is as large as
  // a head block. All other bytes of `to` become zero, so that no other KV leaves the pool.
  // Preconditions (QUIRE_CHECK): as for head_blocks, tokens in 0..block_tokens.
  void read_slots(int layer, int head, BlockId block, int tokens, std::span<std::byte> to,
                  kv::FormatId format = {}) const;

  [[nodiscard]] const tensor::KVGeometry& geometry() const { return geometry_; }
  // Precondition (QUIRE_CHECK): the format exists.
  [[nodiscard]] const tensor::KVGeometry& geometry(kv::FormatId format) const;
  [[nodiscard]] std::int32_t num_blocks() const { return num_blocks_; }
  // Returns the format that stores KV so; nullopt where the pool has none.
  [[nodiscard]] std::optional<kv::FormatId> find_format(const tensor::KVGeometry& geometry) const;
  // Returns how many blocks of a format the bytes are.
  [[nodiscard]] std::int32_t num_blocks(kv::FormatId format) const;
  // Returns all formats as the ledger wants them (kv::LedgerConfig::formats).
  [[nodiscard]] std::vector<kv::BlockFormat> block_formats() const;
  [[nodiscard]] bool on_device() const { return device_ != nullptr; }

 private:
  // Makes a pool in host memory that moves fast to and from `beside`.
  [[nodiscard]] static Result<PagedPool> create_in(const tensor::KVGeometry& geometry,
                                                   std::int32_t num_blocks, const PagedPool& beside,
                                                   std::int32_t whole_blocks = 0);
  [[nodiscard]] std::span<std::byte> planes_of(int layer);
  void give_back_of(int layer, BlockId first, std::int32_t count,
                    const std::function<bool(BlockId)>& is_gone);
  [[nodiscard]] std::size_t head_offset(int layer, int head, BlockId first, std::int32_t count,
                                        kv::FormatId format) const;
  // Returns the bytes of one head of one layer.
  [[nodiscard]] std::int64_t plane_bytes() const {
    return geometry_.head_block_bytes() * num_blocks_;
  }
  PagedPool() = default;
  tensor::KVGeometry geometry_;
  std::vector<tensor::KVGeometry> more_;  // of the formats behind the pool's own
  std::int32_t num_blocks_ = 0;
  device::HostBuffer bytes_;  // empty with device_
  std::unique_ptr<DevicePagedPool> device_;
};

// Checks the ranges that create() demands: kInvalidArgument naming the field, kUnsupported for a
// dtype.
[[nodiscard]] Status check_geometry(const tensor::KVGeometry& geometry);

// Returns how many blocks fit into `budget_bytes`, at least 0. A geometry that create() would
// refuse gives 0.
[[nodiscard]] std::int32_t blocks_in_budget(const tensor::KVGeometry& geometry,
                                            std::int64_t budget_bytes);

}  // namespace quire::kv_store
