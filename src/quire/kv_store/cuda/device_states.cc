#include "quire/kv_store/device_states.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;

class CudaStates final : public DeviceStates {
 public:
  CudaStates(DeviceContext& device, DeviceBuffer<std::byte> bytes)
      : device_(device), bytes_(std::move(bytes)) {}

  [[nodiscard]] std::byte* data() const override { return bytes_.data(); }
  [[nodiscard]] Status read(std::int64_t offset, std::span<std::byte> to) const override {
    return copy(to.data(), bytes_.data() + offset, to.size());
  }
  [[nodiscard]] Status write(std::int64_t offset, std::span<const std::byte> from) override {
    return copy(bytes_.data() + offset, from.data(), from.size());
  }

 private:
  // Copies behind all that was queued, and waits.
  [[nodiscard]] Status copy(void* to, const void* from, std::size_t bytes) const {
    QUIRE_TRY_STATUS(device_.make_current());
    QUIRE_TRY_STATUS(device::cuda::copy_async(to, from, bytes, device_.compute_stream().get()));
    return device_.compute_stream().synchronize();
  }

  DeviceContext& device_;
  const DeviceBuffer<std::byte> bytes_;
};

}  // namespace

Result<std::unique_ptr<DeviceStates>> make_device_states(device::Accelerator& accelerator,
                                                         std::int64_t bytes) {
  DeviceContext& device = accelerator.context();
  QUIRE_TRY_STATUS(device.make_current());
  QUIRE_TRY(auto buffer,
            DeviceBuffer<std::byte>::make(device.device_pool(), static_cast<std::size_t>(bytes)));
  return std::unique_ptr<DeviceStates>(std::make_unique<CudaStates>(device, std::move(buffer)));
}

}  // namespace quire::kv_store
