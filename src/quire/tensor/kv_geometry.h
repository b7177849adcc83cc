// KVGeometry: the sizes of the KV of one token. The model writes it, the engine and the paged pool
// read it. Model and `kv` never include each other (docs/architecture.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::tensor {

// Sizes of the KV of one layer.
struct KVLayerSize {
  int kv_heads = 0;
  int head_dim = 0;

  friend bool operator==(const KVLayerSize&, const KVLayerSize&) = default;
};

// Layers that have a window, of a model in which others have none.
struct KVWindowGroup {
  int layers = 0;
  int tokens = 0;                // the widest window
  std::int64_t block_bytes = 0;  // bytes of a block in these layers
};

// Sizes of KV. All layers share the dtype, and most models' layers heads and head size. A block
// holds `block_tokens` token slots of all layers.
//
// Where layers differ (docs/adr/0049) `head_dim` is the size of a stored head: a divisor of what
// the heads of all layers are stored as. A larger head takes several stored heads, which lie
// together as one block of its own size.
struct KVGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;  // head size of the model, for example 80
  DType dtype =
      DType::kBFloat16;   // type of KV as computed, and as stored where the format is plain
  int block_tokens = 32;  // 1..256
  std::vector<int> window_tokens;  // [layers] sliding window, 0: none. A row at position p sees
                                   // positions p - window + 1 to p
  KVFormat format = KVFormat::kPlain;
  std::vector<KVLayerSize> layer_sizes = {};  // [layers], or empty: all are as above

  // Returns the geometry of one layer alone, whose heads have its own size.
  [[nodiscard]] KVGeometry of_layer(int layer) const;
  // Returns how many stored heads a head of a layer takes, and all its heads.
  [[nodiscard]] int stored_per_head(int layer) const;
  [[nodiscard]] int stored_heads(int layer) const;
  // Returns the number of stored heads of the layers before, and of all.
  [[nodiscard]] int first_stored_head(int layer) const;
  [[nodiscard]] int all_stored_heads() const { return first_stored_head(layers); }
  // Returns the head size as stored: rounded up to 32, padded with zeros, so that kernels read
  // whole vectors.
  [[nodiscard]] int stored_head_dim() const { return (head_dim + 31) / 32 * 32; }
  // Returns the token slots of a stored block. Values lie in pairs of tokens, so they are rounded
  // up to 2; codes to the number that a word holds.
  [[nodiscard]] int stored_block_tokens() const {
    const int pack = kv_pack(format, dtype), unit = pack < 2 ? 2 : pack;
    return (block_tokens + unit - 1) / unit * unit;
  }
  // Returns whether blocks of the format may have so many tokens: int4 takes whole runs of 32.
  [[nodiscard]] bool fits_format() const {
    return format != KVFormat::kInt4 || block_tokens % kInt4RunTokens == 0;
  }
  // Returns the bytes from a head block's K to its V.
  [[nodiscard]] std::int64_t v_offset() const {
    return std::int64_t{stored_head_dim()} * stored_block_tokens() * kv_value_bits(format, dtype) /
           8;
  }
  // Returns the bytes of the scale of a token and head, of K or V; 0 where no token has its own.
  [[nodiscard]] int scale_bytes() const { return format == KVFormat::kInt8 ? 2 : 0; }
  // Returns the bytes from a head block's K to its scales (PagedKVView). Plain formats have none.
  [[nodiscard]] std::int64_t scale_offset() const { return 2 * v_offset(); }
  // Returns the bytes of K, V and scales of one block, for one stored head of one layer.
  [[nodiscard]] std::int64_t head_block_bytes() const {
    return scale_offset() + kv_scales_bytes(format, stored_head_dim(), stored_block_tokens());
  }
  // Returns the bits that a value of the model takes, with scales and with what pads its head and
  // its block.
  [[nodiscard]] double bits_per_value() const {
    return 8.0 * static_cast<double>(head_block_bytes()) / (2.0 * head_dim * block_tokens);
  }
  // Returns the bytes of one block over all layers and heads: the unit of kv_budget.
  [[nodiscard]] std::int64_t block_bytes() const {
    return layer_sizes.empty() ? head_block_bytes() * kv_heads * layers
                               : head_block_bytes() * all_stored_heads();
  }
  // Returns the number of last tokens that some layer still sees: the largest window if all layers
  // have one, else 0.
  [[nodiscard]] int forget_after_tokens() const;
  // Returns the window of a layer, 0 for none.
  [[nodiscard]] int window_of(int layer) const {
    const auto at = static_cast<std::size_t>(layer);
    return at < window_tokens.size() ? window_tokens[at] : 0;
  }
  // Returns the layers that have a window, where others have none; else none.
  [[nodiscard]] KVWindowGroup window_group() const;
};

}  // namespace quire::tensor
