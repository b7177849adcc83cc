// The update kernel of a contiguous KV cache: two straight copies at an offset. No CUDA header.
//
// A token's row is contiguous in the cache, whatever the heads, so the element type matters only
// for sizes. Reads and writes 2 * tokens * row_bytes each; floor: that over the copy bandwidth.
#pragma once

#include <cstdint>

#include "quire/kv_cache.h"
#include "quire/result.h"

namespace quire::kv_cache::cuda {

// The division of the work of a launch. One thread moves `vectors_per_thread` vectors of
// `vector_bytes`, neighbours in a warp moving neighbouring vectors.
struct UpdateShape {
  int vector_bytes = 16;  // 16, 4, 2 or 1: divides all addresses and the row
  int vectors_per_thread = 1;
};

struct UpdateLaunch {
  KVUpdate update;
  UpdateShape shape;
};

// Chooses the widest vector that fits, and as many per thread as keep every multiprocessor busy.
[[nodiscard]] UpdateLaunch plan_update(const KVUpdate& update);

// Launches an update. Precondition: check_kv_update, and a shape as plan_update gives (vectors per
// thread: 1, 2, 4).
[[nodiscard]] Status launch_update(const UpdateLaunch& launch, KVStream stream);

}  // namespace quire::kv_cache::cuda
