// Accelerator: the GPU that an engine runs on. Builds without CUDA have the class too, and opening
// one fails with kDevice there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::device {

namespace cuda {
class DeviceContext;
}

// The engine owns it. It outlives everything that was made on it.
class Accelerator {
 public:
  // Opens "cuda" (the first GPU) or "cuda:N". Fails with kDevice without CUDA in the build, without
  // a driver or without a usable GPU.
  [[nodiscard]] static Result<std::unique_ptr<Accelerator>> open(std::string_view device);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  [[nodiscard]] cuda::DeviceContext& context() const { return *context_; }
  [[nodiscard]] std::string name() const;  // "NVIDIA H200"
  // Returns the name of the kernels in the identity of KV; kernels_name() makes it.
  [[nodiscard]] std::string kernels(bool deterministic) const;
  // Returns the bytes of device memory that the driver could still give.
  [[nodiscard]] Result<std::int64_t> free_bytes() const;

 private:
  explicit Accelerator(std::unique_ptr<cuda::DeviceContext> context);
  std::unique_ptr<cuda::DeviceContext> context_;
};

}  // namespace quire::device
