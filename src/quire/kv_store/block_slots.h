// Slots of head blocks in host memory: copying some of them, in the layout of their format.
#pragma once

#include <cstddef>
#include <span>

#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

// Consecutive slots of two head blocks.
struct SlotRange {
  int from = 0, to = 0, count = 0;
};

// Copies the first `tokens` slots of one head block, or all of one that is written whole.
void copy_slots(const tensor::KVGeometry& geometry, int tokens, const std::byte* from,
                std::byte* to);
// Copies the first `tokens` slots of a block of one head, and makes all else zeros.
void copy_first_slots(const tensor::KVGeometry& geometry, int tokens,
                      std::span<const std::byte> from, std::span<std::byte> to);
// Copies slots from any place to any place. Precondition: blocks are not written whole.
void copy_slot_range(const tensor::KVGeometry& geometry, const SlotRange& range,
                     const std::byte* from, std::byte* to);

}  // namespace quire::kv_store
