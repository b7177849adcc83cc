// Builds without CUDA.
#include "quire/device/accelerator.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/result.h"

#ifndef QUIRE_HAS_CUDA

namespace quire::kernels {

Result<DeviceCeilings> measure_device_ceilings(device::Accelerator&) {
  return {ErrorCode::kDevice, "this library was built without CUDA"};
}

}  // namespace quire::kernels

#endif
