// DeviceStates: the bytes of a pool of states on an accelerator.
//
// Thread rule: the engine thread. Calls wait for all that the engine computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/device/accelerator.h"
#include "quire/result.h"

namespace quire::kv_store {

class DeviceStates {
 public:
  virtual ~DeviceStates() = default;
  // Returns their address on the device.
  [[nodiscard]] virtual std::byte* data() const = 0;
  // Copies bytes from `offset` on to host memory; write() copies them back.
  [[nodiscard]] virtual Status read(std::int64_t offset, std::span<std::byte> to) const = 0;
  [[nodiscard]] virtual Status write(std::int64_t offset, std::span<const std::byte> from) = 0;
};

// Reserves so many bytes. Fails with kDevice without CUDA, and with kOutOfBlocks and both numbers
// when the device has no room.
[[nodiscard]] Result<std::unique_ptr<DeviceStates>> make_device_states(
    device::Accelerator& accelerator, std::int64_t bytes);

}  // namespace quire::kv_store
