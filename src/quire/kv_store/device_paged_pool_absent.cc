// Builds without CUDA.
#ifndef QUIRE_HAS_CUDA
#include <cstdint>
#include <memory>

#include "quire/device/accelerator.h"
#include "quire/kv_store/device_paged_pool.h"
#include "quire/kv_store/device_states.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

Result<std::unique_ptr<DevicePagedPool>> make_device_paged_pool(device::Accelerator&,
                                                                const tensor::KVGeometry&,
                                                                std::int32_t) {
  return {ErrorCode::kDevice, "this library was built without CUDA"};
}

Result<std::unique_ptr<DeviceStates>> make_device_states(device::Accelerator&, std::int64_t) {
  return {ErrorCode::kDevice, "this library was built without CUDA"};
}

}  // namespace quire::kv_store

#endif
