// The weights of a decoder on a GPU: matrices bf16 [outputs, inputs], vectors fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"

namespace quire::model::cuda {

using DeviceVector = device::cuda::DeviceBuffer<float>;

struct DeviceMatrix {
  device::cuda::DeviceBuffer<std::uint16_t> weights;
  DeviceVector bias;  // [outputs] or empty
  std::int64_t outputs = 0, inputs = 0;
};

struct DeviceLayer {
  DeviceVector attention_norm, mlp_norm;
  DeviceVector q_norm, k_norm;  // empty without QK norm
  DeviceMatrix qkv, output, gate_up, down;
};

struct DeviceWeights {
  DeviceMatrix embedding;  // empty when the head serves as such
  DeviceMatrix head;
  DeviceVector final_norm;
  std::vector<DeviceLayer> layers;
};

// Copies, and waits for it. kUnsupported for matrices that are not bf16, kOutOfBlocks when the
// device has no room.
[[nodiscard]] Result<DeviceWeights> upload(device::cuda::DeviceContext& device,
                                           const ModelConfig& config,
                                           const DecoderWeights& weights);

}  // namespace quire::model::cuda
