// KVGeometry: the sizes of the KV of one token. The model writes it, the engine and the shelves
// read it. Model and `kv` never include each other (docs/architecture.md).
#pragma once

#include <cstdint>
#include <vector>

#include "quire/tensor/dtype.h"

namespace quire::tensor {

// All layers share heads, head size and dtype (one geometry group; docs/adr/0003). A block holds
// `block_tokens` token slots of all layers.
struct KVGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;  // as the model says, e.g. 80
  DType dtype = DType::kBFloat16;
  int block_tokens = 32;           // 1..256
  std::vector<int> window_tokens;  // [layers] sliding window, 0 = none; a row at position p sees
                                   // positions p - window + 1 .. p

  // Head size as stored: rounded up to 32, the rest zero, so that kernels see whole vectors.
  [[nodiscard]] int stored_head_dim() const { return (head_dim + 31) / 32 * 32; }
  // Token slots per block as stored: rounded up to 2, because values are stored in token pairs.
  [[nodiscard]] int stored_block_tokens() const { return (block_tokens + 1) / 2 * 2; }
  // Bytes of K plus V of one block of one KV head of one layer.
  [[nodiscard]] std::int64_t head_block_bytes() const {
    return std::int64_t{2} * stored_head_dim() * stored_block_tokens() * dtype_bytes(dtype);
  }
  // Bytes of one block over all layers and heads: the unit of kv_budget.
  [[nodiscard]] std::int64_t block_bytes() const { return head_block_bytes() * kv_heads * layers; }
  // Tokens that every layer forgets: the largest window if all layers have one, else 0.
  [[nodiscard]] int forget_after_tokens() const;
};

}  // namespace quire::tensor
