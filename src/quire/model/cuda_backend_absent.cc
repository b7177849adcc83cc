// Builds without CUDA.
#ifndef QUIRE_HAS_CUDA
#include <memory>

#include "quire/device/accelerator.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"

namespace quire::model {

Result<std::unique_ptr<DecoderBackend>> make_cuda_backend(device::Accelerator&, const ModelConfig&,
                                                          const DecoderWeights&, bool) {
  return {ErrorCode::kDevice, "this library was built without CUDA"};
}

}  // namespace quire::model

#endif
