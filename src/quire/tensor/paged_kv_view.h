// PagedKVView: where the KV bytes of one layer lie. kv_store lends it to kernels and attention for
// one call. It has pointers and strides, and does not know who owns which block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::tensor {

// Addresses the KV of one layer. Block b of KV head h begins at data + h * head_stride +
// b * block_stride. With D = head_dim (a multiple of 32) and B = block_tokens rounded up to 2, a
// block holds:
//   bf16, fp16   K [D / 2][B][2], then V [B / 2][D][2]   (full AMX tiles for B = 32)
//   fp32         K [D][B],        then V [B][D]
//   int8         K [D / 4][B][4], then V [B / 4][D][4], then scales of K [B] and of V [B]: B is
//                rounded up to 4, four codes lie in the order of code_place, scales are fp16
//   fp8          K and V as int8, then the scales of K and of V, fp32, and zeros up to 64 bytes
//   int4         K [D / 8][B] words, then V [B / 8][D] words, of eight codes in the order of
//                code_place. Then for each 32 tokens: scales of K [D], minimums of K [D], and for
//                each group of 32 channels: scales of V [32], minimums of V [32], all fp16
// Consecutive blocks of a head are consecutive in memory. A slot that was never written may hold
// any bytes.
//
// With `on_device` the addresses are a GPU's and the dtype is bf16 or fp16. A block then holds
// K [B][D], then V [B][D], so the elements of a token lie together. int8 has codes in bytes there,
// and then the same scales.
struct PagedKVView {
  std::byte* data = nullptr;
  std::ptrdiff_t head_stride = 0;   // bytes
  std::ptrdiff_t block_stride = 0;  // bytes
  std::ptrdiff_t v_offset = 0;      // bytes from a block's K to its V
  int num_blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;      // stored head size: a multiple of 32, at most 576
  int block_tokens = 0;  // configured tokens of a block, 1..256
  DType dtype = DType::kBFloat16;
  bool on_device = false;
  KVFormat format = KVFormat::kPlain;
  std::ptrdiff_t scale_offset = 0;  // bytes from a block's K to its scales, where it has some

  // Returns the token slots of a block as stored.
  [[nodiscard]] int stored_block_tokens() const {
    const int pack = kv_pack(format, dtype), unit = pack < 2 ? 2 : pack;
    return (block_tokens + unit - 1) / unit * unit;
  }
};

// The place of one token's K and V.
struct KVSlot {
  std::int32_t block = 0;   // index of the block
  std::int32_t offset = 0;  // token slot inside it
};

}  // namespace quire::tensor
