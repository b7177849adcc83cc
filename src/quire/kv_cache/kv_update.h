// The checks before the update kernel of a contiguous KV cache, and its CPU reference.
#pragma once

#include <cstdint>

#include "quire/kv_cache.h"
#include "quire/result.h"

namespace quire::kv_cache {

// Returns the one overflow error: "KV cache overflow: position 11 exceeds capacity 10 (...)".
[[nodiscard]] Error kv_overflow(int position, int num_tokens, int capacity);

// Checks that `n` tokens may follow at `position`.
// Errors: kInvalidArgument for n < 1; kOverflow past the capacity.
[[nodiscard]] Status check_kv_advance(int position, int n, int capacity);

// Returns the bytes of one token's row of one layer's keys.
[[nodiscard]] std::int64_t kv_row_bytes(const KVUpdate& update);

// Checks what can be known without the device: counts, pointers and their alignment, capacity.
[[nodiscard]] Status check_kv_update(const KVUpdate& update);

// Does in host memory what the kernel does: the reference of its tests. Writes nothing and counts a
// refusal when the rows do not fit. Precondition: check_kv_update(update).ok().
void update_kv_reference(const KVUpdate& update);

}  // namespace quire::kv_cache
