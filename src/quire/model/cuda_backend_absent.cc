// Builds without CUDA.
#ifndef QUIRE_HAS_CUDA
#include <memory>

#include "quire/device/accelerator.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model {

Result<std::unique_ptr<DeviceUpload>> make_device_upload(device::Accelerator&, const ModelConfig&,
                                                         bool, tensor::DType) {
  return {ErrorCode::kDevice, "this library was built without CUDA"};
}

}  // namespace quire::model

#endif
