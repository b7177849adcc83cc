// StepUpload: the small arrays that describe one step, collected on the host and sent to the device
// as one copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "quire/attention/device_plan.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/result.h"

namespace quire::model::cuda {

// Where an array lies in the upload.
template <class T>
struct Uploaded {
  std::size_t offset = 0;
};

class StepUpload {
 public:
  explicit StepUpload(device::cuda::DeviceContext& device) : device_(&device) {}

  void clear() { bytes_.clear(); }

  template <class T>
  [[nodiscard]] Uploaded<T> add(std::span<const T> values) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t offset = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(offset + values.size_bytes());
    if (!values.empty()) {
      std::memcpy(bytes_.data() + offset, values.data(), values.size_bytes());
    }
    return {offset};
  }

  // Queues the copy on the compute stream. What was sent before must have been read by now.
  [[nodiscard]] Status send() {
    const std::size_t size = std::max<std::size_t>(bytes_.size(), 1);
    if (on_device_.size() < size) {
      on_device_ = {};
      pinned_ = {};
      QUIRE_TRY(on_device_,
                device::cuda::DeviceBuffer<std::byte>::make(device_->device_pool(), 2 * size));
      QUIRE_TRY(pinned_,
                device::cuda::PinnedBuffer<std::byte>::make(device_->pinned_pool(), 2 * size));
    }
    std::ranges::copy(bytes_, pinned_.data());
    return device::cuda::copy_async(on_device_.data(), pinned_.data(), bytes_.size(),
                                    device_->compute_stream().get());
  }

  // Valid after send() until the next one.
  template <class T>
  [[nodiscard]] const T* get(Uploaded<T> array) const {
    return reinterpret_cast<const T*>(on_device_.data() + array.offset);
  }

 private:
  device::cuda::DeviceContext* device_;
  std::vector<std::byte> bytes_;
  device::cuda::DeviceBuffer<std::byte> on_device_;
  device::cuda::PinnedBuffer<std::byte> pinned_;
};

// What all layers with one window share during a step.
struct WindowStep {
  std::int32_t window_tokens = 0;
  attention::DevicePlan plan;
  Uploaded<attention::DevicePlan::Item> few, many;
  Uploaded<attention::DevicePlan::Row> rows;
  Uploaded<attention::DevicePlan::Parts> parts;
  Uploaded<std::int32_t> blocks, query_rows, query_positions;
  device::cuda::DeviceBuffer<float> cosines, sines;  // [queries, half]
};

}  // namespace quire::model::cuda
