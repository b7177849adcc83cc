// Accelerator: the GPU that an engine runs on. Builds without CUDA have it too: opening one is
// kDevice there.
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

// Owned by the engine; outlives everything that was made on it.
class Accelerator {
 public:
  // "cuda" (the first one) or "cuda:N". kDevice without CUDA in the build, without a driver or a
  // usable GPU.
  [[nodiscard]] static Result<std::unique_ptr<Accelerator>> open(std::string_view device);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  [[nodiscard]] cuda::DeviceContext& context() const { return *context_; }
  [[nodiscard]] std::string name() const;  // "NVIDIA H200"
  // What names the kernels in the identity of KV, see kernels_name().
  [[nodiscard]] std::string kernels(bool deterministic) const;
  // That the driver could still give.
  [[nodiscard]] Result<std::int64_t> free_bytes() const;

 private:
  explicit Accelerator(std::unique_ptr<cuda::DeviceContext> context);
  std::unique_ptr<cuda::DeviceContext> context_;
};

}  // namespace quire::device
