#include "quire/device/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_guard.h"
#include "quire/device/memory_source.h"
#include "quire/result.h"

namespace quire::device::cuda {
namespace {

class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(int ordinal) : ordinal_(ordinal) {}

  Result<std::byte*> allocate(std::int64_t bytes) override {
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(ordinal_));
    void* data = nullptr;
    QUIRE_TRY_STATUS(
        to_status(cudaMalloc(&data, static_cast<std::size_t>(bytes)), "cudaMalloc", bytes));
    return static_cast<std::byte*>(data);
  }

  Status release(std::byte* data, std::int64_t /*bytes*/) override {
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(ordinal_));
    return to_status(cudaFree(data), "cudaFree");
  }

 private:
  int ordinal_;
};

class PinnedMemory final : public MemorySource {
 public:
  Result<std::byte*> allocate(std::int64_t bytes) override {
    void* data = nullptr;
    QUIRE_TRY_STATUS(
        to_status(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable),
                  "cudaHostAlloc", bytes));
    return static_cast<std::byte*>(data);
  }

  Status release(std::byte* data, std::int64_t /*bytes*/) override {
    return to_status(cudaFreeHost(data), "cudaFreeHost");
  }
};

class ManagedMemory final : public MemorySource {
 public:
  explicit ManagedMemory(int ordinal) : ordinal_(ordinal) {}

  Result<std::byte*> allocate(std::int64_t bytes) override {
    QUIRE_TRY(const DeviceGuard guard, DeviceGuard::enter(ordinal_));
    std::size_t free_bytes = 0, total_bytes = 0;
    QUIRE_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    // Managed memory may be larger than the device, which then thrashes instead of failing.
    if (static_cast<std::size_t>(bytes) > free_bytes) {
      return std::move(to_status(cudaErrorMemoryAllocation, "cudaMallocManaged", bytes)).error();
    }
    void* data = nullptr;
    QUIRE_TRY_STATUS(to_status(cudaMallocManaged(&data, static_cast<std::size_t>(bytes)),
                               "cudaMallocManaged", bytes));
    return static_cast<std::byte*>(data);
  }

  Status release(std::byte* data, std::int64_t /*bytes*/) override {
    return to_status(cudaFree(data), "cudaFree");
  }

 private:
  int ordinal_;
};

}  // namespace

std::unique_ptr<MemorySource> make_device_memory(int ordinal) {
  return std::make_unique<DeviceMemory>(ordinal);
}

std::unique_ptr<MemorySource> make_pinned_memory() { return std::make_unique<PinnedMemory>(); }

std::unique_ptr<MemorySource> make_managed_memory(int ordinal) {
  return std::make_unique<ManagedMemory>(ordinal);
}

}  // namespace quire::device::cuda
