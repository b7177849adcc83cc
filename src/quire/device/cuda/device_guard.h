// Makes a GPU the calling thread's current one and restores the one before. No CUDA header.
#pragma once

#include <utility>

#include "quire/result.h"

namespace quire::device::cuda {

// Returns kDevice without a driver, or when no GPU has this ordinal.
[[nodiscard]] Status check_ordinal(int ordinal);

class DeviceGuard {
 public:
  // Fails as check_ordinal does.
  [[nodiscard]] static Result<DeviceGuard> enter(int ordinal);
  DeviceGuard(DeviceGuard&& other) noexcept : previous_(std::exchange(other.previous_, kNone)) {}
  DeviceGuard& operator=(DeviceGuard&&) = delete;
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  static constexpr int kNone = -1;  // nothing to restore
  explicit DeviceGuard(int previous) : previous_(previous) {}
  int previous_;
};

}  // namespace quire::device::cuda
