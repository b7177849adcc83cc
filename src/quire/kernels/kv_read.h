// Reading single tokens back from the paged pool, for what looks at KV outside of attention.
#pragma once

#include <span>

#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {

// Reads K (rotated as stored) of one token and KV head as fp32; read_value reads V. Preconditions
// (QUIRE_CHECK): the slot lies in the view, out.size() <= view.head_dim.
void read_key(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
              std::span<float> out);
void read_value(const tensor::PagedKVView& view, int kv_head, tensor::KVSlot slot,
                std::span<float> out);

}  // namespace quire::kernels
