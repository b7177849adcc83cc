// The decoder's passes on a GPU.
#pragma once

#include <memory>

#include "quire/device/cuda/device_context.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/decoder_backend.h"
#include "quire/result.h"

namespace quire::model::cuda {

// Makes a backend for a GPU. `device` and `config` outlive it; `config` is one that
// make_device_upload accepts. Fails with kOutOfBlocks and kDevice.
[[nodiscard]] Result<std::unique_ptr<DecoderBackend>> make_backend(
    device::cuda::DeviceContext& device, const ModelConfig& config, DeviceWeights weights,
    bool deterministic);

}  // namespace quire::model::cuda
