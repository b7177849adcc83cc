// Builds without CUDA.
#ifndef QUIRE_HAS_CUDA
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/result.h"

namespace quire::device {

namespace cuda {
class DeviceContext {};
}  // namespace cuda

Result<std::unique_ptr<Accelerator>> Accelerator::open(std::string_view device) {
  return {ErrorCode::kDevice,
          base::str_cat("device ", base::quoted(device),
                        " needs CUDA, which this library was built without; build it where nvcc "
                        "is, with -DQUIRE_CUDA=ON, or use device=\"cpu\"")};
}

Accelerator::Accelerator(std::unique_ptr<cuda::DeviceContext> context)
    : context_(std::move(context)) {}
Accelerator::~Accelerator() = default;
std::string Accelerator::name() const { return ""; }
std::string Accelerator::kernels(bool /*deterministic*/) const { return ""; }
Result<std::int64_t> Accelerator::free_bytes() const { return std::int64_t{0}; }

}  // namespace quire::device

#endif
