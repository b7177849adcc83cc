// DeviceContext: one GPU as Quire uses it. Owns one stream that computes and one that copies, and
// the pools of its memory and of pinned host memory. No CUDA header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/graph.h"
#include "quire/device/device_properties.h"
#include "quire/device/memory_pool.h"
#include "quire/device/memory_source.h"
#include "quire/result.h"

namespace quire::device::cuda {

struct DeviceContextOptions {
  AllocationBudget device_budget = {};
  AllocationBudget pinned_budget = {};
};

struct DriverMemory {
  std::int64_t free_bytes = 0;
  std::int64_t total_bytes = 0;
};

// Owned by whoever runs forward steps and used by that thread, the pools apart. Must outlive its
// buffers. Blocks of the pools are reused in the order of compute_stream. Whoever uses one on
// copy_stream makes compute_stream wait for that (CudaStream::wait) before giving it back.
class DeviceContext {
 public:
  // Creates a context and leaves the device current in the calling thread. Returns kDevice without
  // a driver or GPU, for an ordinal that does not exist, and for a GPU that is too old
  // (check_supported).
  [[nodiscard]] static Result<std::unique_ptr<DeviceContext>> create(
      int ordinal, const DeviceContextOptions& options = {});

  // Makes this device the current one of the calling thread. Streams and events are made on, and
  // kernels run on, a thread's current device. A thread that did not create the context calls this
  // first.
  [[nodiscard]] Status make_current() const;

  [[nodiscard]] const DeviceProperties& properties() const { return properties_; }
  [[nodiscard]] CudaStream& compute_stream() { return compute_; }
  [[nodiscard]] CudaStream& copy_stream() { return copy_; }
  [[nodiscard]] MemoryPool& device_pool() { return *device_pool_; }
  [[nodiscard]] MemoryPool& pinned_pool() { return *pinned_pool_; }
  // Returns the pool for pinned memory that outlives the context.
  [[nodiscard]] const std::shared_ptr<MemoryPool>& shared_pinned_pool() { return pinned_pool_; }

  // Makes work queued on `stream` from here on begin after what compute_stream has so far. Any
  // thread.
  [[nodiscard]] Status order_after_compute(const CudaStream& stream);
  // Calls `queue`, which gives compute_stream work, while nothing is being recorded. Else the work
  // would become part of the graph. Any thread, but not from inside record.
  [[nodiscard]] Status queue_unrecorded(const std::function<Status()>& queue);
  // Records a graph by Graph::capture on compute_stream. Other threads keep off it by the two calls
  // above.
  [[nodiscard]] Result<Graph> record(const std::function<Status()>& queue);

  // Returns the driver's view of the GPU's memory: of all processes, not ours alone.
  [[nodiscard]] Result<DriverMemory> driver_memory() const;

 private:
  DeviceContext(DeviceProperties properties, CudaStream compute, CudaStream copy,
                const DeviceContextOptions& options);

  DeviceProperties properties_;
  // Before the streams, so that these have ended when memory goes back to the driver.
  std::unique_ptr<MemoryPool> device_pool_;
  std::shared_ptr<MemoryPool> pinned_pool_;
  CudaStream compute_;
  CudaStream copy_;
  std::mutex recording_;  // held while compute_ records, is asked where it stands, or given work
                          // by another thread
};

}  // namespace quire::device::cuda
