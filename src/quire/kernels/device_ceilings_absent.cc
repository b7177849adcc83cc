// Builds without CUDA.
#ifndef QUIRE_HAS_CUDA
#include "quire/device/accelerator.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/result.h"

namespace quire::kernels {

Result<DeviceCeilings> measure_device_ceilings(device::Accelerator&) {
  return {ErrorCode::kDevice, "this library was built without CUDA"};
}

}  // namespace quire::kernels

#endif
