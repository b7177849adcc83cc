#include "quire/device/cuda/device_guard.h"

#include <cuda_runtime_api.h>

#include "quire/base/str.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/result.h"

namespace quire::device::cuda {

Status check_ordinal(int ordinal) {
  int count = 0;  // the call leaves it alone when it fails
  if (const Status counted = to_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
      !counted.ok()) {
    return {ErrorCode::kDevice,
            base::str_cat("no usable GPU: ", counted.error().message,
                          "; look at the driver with nvidia-smi, or use device=\"cpu\"")};
  }
  if (ordinal < 0 || ordinal >= count) {
    return {ErrorCode::kDevice, base::str_cat("no device cuda:", ordinal, ": this machine has ",
                                              count, "; ordinals begin at 0")};
  }
  return {};
}

Result<DeviceGuard> DeviceGuard::enter(int ordinal) {
  QUIRE_TRY_STATUS(check_ordinal(ordinal));
  int previous = 0;
  QUIRE_CUDA_TRY(cudaGetDevice(&previous));
  if (previous == ordinal) {
    return DeviceGuard(kNone);
  }
  QUIRE_CUDA_TRY(cudaSetDevice(ordinal));
  return DeviceGuard(previous);
}

DeviceGuard::~DeviceGuard() {
  if (previous_ != kNone) {
    (void)cudaSetDevice(previous_);  // it was current before, so it exists
  }
}

}  // namespace quire::device::cuda
