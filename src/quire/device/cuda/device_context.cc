#include "quire/device/cuda/device_context.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_guard.h"
#include "quire/device/cuda/graph.h"
#include "quire/device/cuda/memory.h"
#include "quire/device/device_properties.h"
#include "quire/device/memory_pool.h"
#include "quire/result.h"

namespace quire::device::cuda {
namespace {

Result<DeviceProperties> read_properties(int ordinal) {
  cudaDeviceProp all;
  QUIRE_CUDA_TRY(cudaGetDeviceProperties(&all, ordinal));
  return DeviceProperties{
      .ordinal = ordinal,
      .name = all.name,
      .compute_major = all.major,
      .compute_minor = all.minor,
      .multiprocessors = all.multiProcessorCount,
      .total_bytes = static_cast<std::int64_t>(all.totalGlobalMem),
      .l2_bytes = all.l2CacheSize,
      .shared_bytes_per_block = static_cast<std::int64_t>(all.sharedMemPerBlockOptin),
      .shared_bytes_per_multiprocessor = static_cast<std::int64_t>(all.sharedMemPerMultiprocessor)};
}

}  // namespace

DeviceContext::DeviceContext(DeviceProperties properties, CudaStream compute, CudaStream copy,
                             const DeviceContextOptions& options)
    : properties_(std::move(properties)),
      device_pool_(std::make_unique<MemoryPool>(make_device_memory(properties_.ordinal),
                                                options.device_budget)),
      pinned_pool_(std::make_shared<MemoryPool>(make_pinned_memory(), options.pinned_budget)),
      compute_(std::move(compute)),
      copy_(std::move(copy)) {}

Result<std::unique_ptr<DeviceContext>> DeviceContext::create(int ordinal,
                                                             const DeviceContextOptions& options) {
  QUIRE_TRY_STATUS(check_ordinal(ordinal));
  QUIRE_TRY(DeviceProperties properties, read_properties(ordinal));
  QUIRE_TRY_STATUS(check_supported(properties));
  QUIRE_CUDA_TRY(cudaSetDevice(ordinal));
  QUIRE_TRY(CudaStream compute, CudaStream::create());
  QUIRE_TRY(CudaStream copy, CudaStream::create());
  return std::unique_ptr<DeviceContext>(
      new DeviceContext(std::move(properties), std::move(compute), std::move(copy), options));
}

Status DeviceContext::make_current() const {
  return to_status(cudaSetDevice(properties_.ordinal), "cudaSetDevice");
}

Status DeviceContext::order_after_compute(const CudaStream& stream) {
  QUIRE_TRY(const Event now, Event::create());
  const std::lock_guard lock(recording_);
  QUIRE_TRY_STATUS(compute_.record(now));
  return stream.wait(now);
}

Status DeviceContext::queue_unrecorded(const std::function<Status()>& queue) {
  const std::lock_guard lock(recording_);
  return queue();
}

Result<Graph> DeviceContext::record(const std::function<Status()>& queue) {
  const std::lock_guard lock(recording_);
  return Graph::capture(compute_, queue);
}

Result<DriverMemory> DeviceContext::driver_memory() const {
  QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(properties_.ordinal));
  std::size_t free_bytes = 0, total_bytes = 0;
  QUIRE_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
  return DriverMemory{.free_bytes = static_cast<std::int64_t>(free_bytes),
                      .total_bytes = static_cast<std::int64_t>(total_bytes)};
}

}  // namespace quire::device::cuda
