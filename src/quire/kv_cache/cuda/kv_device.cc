#include "quire/kv_cache/kv_device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_guard.h"
#include "quire/device/cuda/memory.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/cuda/update_kv_cache.h"
#include "quire/result.h"

namespace quire::kv_cache {

using device::cuda::DeviceGuard;

Result<void*> allocate_kv(int ordinal, std::int64_t bytes) {
  QUIRE_TRY(std::byte* const data, device::cuda::make_device_memory(ordinal)->allocate(bytes));
  return static_cast<void*>(data);
}

void free_kv(int ordinal, void* data) {
  // Fails only when the device is lost, and the memory with it.
  (void)device::cuda::make_device_memory(ordinal)->release(static_cast<std::byte*>(data), 0).ok();
}

Status zero_kv(int ordinal, void* data, std::int64_t bytes, KVStream stream) {
  QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(ordinal));
  return device::cuda::fill_async(data, 0, static_cast<std::size_t>(bytes), stream);
}

Status synchronize_kv(int ordinal, KVStream stream) {
  QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(ordinal));
  return device::cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Status launch_kv_update(const KVUpdate& update, KVStream stream) {
  return cuda::launch_update(cuda::plan_update(update), stream);
}

}  // namespace quire::kv_cache
