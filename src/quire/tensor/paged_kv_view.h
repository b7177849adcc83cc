// PagedKVView: where the KV bytes of one layer lie. Plain pointers and strides, lent by kv_store to
// kernels and attention for one call; it knows nothing of who owns which block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/tensor/dtype.h"

namespace quire::tensor {

// Block b of KV head h begins at data + h * head_stride + b * block_stride and holds, with
// D = head_dim (a multiple of 32) and B = block_tokens rounded up to 2:
//   bf16   K [D / 2][B][2], then V [B / 2][D][2]   (for B = 32: full AMX tiles); fp16 too
//   fp32   K [D][B],        then V [B][D]
// Consecutive blocks of a head are consecutive in memory. Slots never written may hold anything.
//
// With `on_device` the addresses are a GPU's, the dtype is bf16 or fp16, and a block holds K
// [B][D], then V [B][D]: a token's elements lie together.
struct PagedKVView {
  std::byte* data = nullptr;
  std::ptrdiff_t head_stride = 0;   // bytes
  std::ptrdiff_t block_stride = 0;  // bytes
  std::ptrdiff_t v_offset = 0;      // bytes from a block's K to its V
  int num_blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;      // stored head size: a multiple of 32, at most 256
  int block_tokens = 0;  // as configured, 1..256
  DType dtype = DType::kBFloat16;
  bool on_device = false;
};

// Where one token's K and V go.
struct KVSlot {
  std::int32_t block = 0;   // index of the block
  std::int32_t offset = 0;  // token slot inside it
};

}  // namespace quire::tensor
