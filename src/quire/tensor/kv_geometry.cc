#include "quire/tensor/kv_geometry.h"

#include <algorithm>
#include <cstddef>

namespace quire::tensor {

KVGeometry KVGeometry::of_layer(int layer) const {
  KVGeometry one = {.layers = 1,
                    .kv_heads = kv_heads,
                    .head_dim = head_dim,
                    .dtype = dtype,
                    .block_tokens = block_tokens,
                    .window_tokens = {},
                    .format = format};
  if (!layer_sizes.empty()) {
    const KVLayerSize& size = layer_sizes[static_cast<std::size_t>(layer)];
    one.kv_heads = size.kv_heads;
    one.head_dim = size.head_dim;
  }
  return one;
}

int KVGeometry::stored_per_head(int layer) const {
  if (layer_sizes.empty()) {
    return 1;
  }
  const int stored = (layer_sizes[static_cast<std::size_t>(layer)].head_dim + 31) / 32 * 32;
  return stored / stored_head_dim();
}

int KVGeometry::stored_heads(int layer) const {
  return layer_sizes.empty()
             ? kv_heads
             : layer_sizes[static_cast<std::size_t>(layer)].kv_heads * stored_per_head(layer);
}

int KVGeometry::first_stored_head(int layer) const {
  if (layer_sizes.empty()) {
    return layer * kv_heads;
  }
  int heads = 0;
  for (int before = 0; before < layer; ++before) {
    heads += stored_heads(before);
  }
  return heads;
}

int KVGeometry::forget_after_tokens() const {
  int largest = 0;
  for (const int window : window_tokens) {
    if (window <= 0) {
      return 0;
    }
    largest = std::max(largest, window);
  }
  return largest;
}

KVWindowGroup KVGeometry::window_group() const {
  KVWindowGroup group;
  for (int layer = 0; layer < layers; ++layer) {
    if (window_of(layer) > 0) {
      ++group.layers;
      group.tokens = std::max(group.tokens, window_of(layer));
      group.block_bytes += head_block_bytes() * stored_heads(layer);
    }
  }
  return group.layers == layers ? KVWindowGroup{} : group;
}

}  // namespace quire::tensor
