// The checks before the update kernel of a contiguous KV cache, and its CPU reference.
#pragma once

#include <cstdint>

#include "quire/kv_cache.h"
#include "quire/result.h"

namespace quire::kernels {

// The one overflow error: "KV cache overflow: position 11 exceeds capacity 10 (...)".
[[nodiscard]] Error kv_overflow(int position, int num_tokens, int capacity);

// Whether `n` tokens may follow at `position`: kInvalidArgument for n < 1, kOverflow past the
// capacity.
[[nodiscard]] Status check_kv_advance(int position, int n, int capacity);

// Bytes of one token's row of one layer's keys.
[[nodiscard]] std::int64_t kv_row_bytes(const KVUpdate& update);

// Everything that can be known without the device: counts, pointers and their alignment, capacity.
[[nodiscard]] Status check_kv_update(const KVUpdate& update);

// What the kernel does, with all pointers in host memory: the oracle of its tests. Writes nothing
// and counts a refusal when the rows do not fit. Precondition: check_kv_update(update).ok().
void update_kv_reference(const KVUpdate& update);

}  // namespace quire::kernels
