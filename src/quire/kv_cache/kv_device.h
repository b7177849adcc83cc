// The functions that a contiguous KV cache needs of a GPU. Two implementations: cuda/kv_device.cc,
// and kv_device_absent.cc for builds without CUDA, where everything is kDevice.
#pragma once

#include <cstdint>

#include "quire/kv_cache.h"
#include "quire/result.h"

namespace quire::kv_cache {

// Returns uninitialised memory of GPU `ordinal`, at least 256-byte aligned.
// Errors: kDevice, kOutOfBlocks.
[[nodiscard]] Result<void*> allocate_kv(int ordinal, std::int64_t bytes);
// Waits for the work of the device and frees the memory. `data` comes from allocate_kv.
void free_kv(int ordinal, void* data);

// Queues zeros in the order of `stream`, which is of GPU `ordinal`.
[[nodiscard]] Status zero_kv(int ordinal, void* data, std::int64_t bytes, KVStream stream);
[[nodiscard]] Status synchronize_kv(int ordinal, KVStream stream);

// Launches the update kernel. Precondition: check_kv_update(update).ok().
[[nodiscard]] Status launch_kv_update(const KVUpdate& update, KVStream stream);

}  // namespace quire::kv_cache
