// Moves KV between blocks of the device pool, and between it and host memory, whose layout differs.
// The CPU stores keys by pairs of dimensions and values by pairs of tokens
// (tensor/paged_kv_view.h). The device stores both by token (attention/cuda/args.h). A head block
// has the same size in both. Codes of 8 bits lie by four, in the order of tensor::int8_place, where
// the CPU has pairs. int4_place.h says where those of 4 bits lie. Scales lie alike.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/kv_format.h"

namespace quire::kernels::cuda {

// The whole pool as blocks of one format: [layers * kv_heads] heads of head blocks, of bf16 or
// fp16, or of codes and their scales.
struct KVPool {
  Half* data = nullptr;
  std::int32_t heads = 0;       // layers * kv_heads
  std::int64_t head_words = 0;  // words of 16 bits from a head to the next
  std::int32_t slots = 0;       // slots of a stored block: even
  std::int32_t head_dim = 0;    // stored head size: a multiple of 32
  tensor::KVFormat format = tensor::KVFormat::kPlain;
};

// A token's slot: block * pool.slots + offset.
using Slot = std::int64_t;

// Copies `count` tokens, from[i] to to[i], in all heads. Slots of `to` are in no `from`. The format
// is not written by block.
[[nodiscard]] cudaError_t copy_slots(const KVPool& pool, const Slot* from, const Slot* to,
                                     std::int32_t count, cudaStream_t stream);

// Copies `count` whole blocks, from[i] to to[i], in all heads. Blocks of `to` are in no `from`.
[[nodiscard]] cudaError_t copy_blocks(const KVPool& pool, const std::int32_t* from,
                                      const std::int32_t* to, std::int32_t count,
                                      cudaStream_t stream);

// Blocks of consecutive heads.
struct HeadBlocks {
  std::int32_t first_head = 0, heads = 0;
  const std::int32_t* blocks = nullptr;  // [count] of the pool
  std::int32_t count = 0;
};

// Copies head blocks between the pool and `host_layout`, [heads][count], where they lie as the host
// stores them.
[[nodiscard]] cudaError_t pack_blocks(const KVPool& pool, const HeadBlocks& which,
                                      Half* host_layout, cudaStream_t stream);
[[nodiscard]] cudaError_t unpack_blocks(const KVPool& pool, const HeadBlocks& which,
                                        const Half* host_layout, cudaStream_t stream);

}  // namespace quire::kernels::cuda
