#include "quire/model/cuda/device_weights.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/weights.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"

namespace quire::model::cuda {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;

class Uploader {
 public:
  explicit Uploader(DeviceContext& device) : device_(device) {}

  Status vector(std::span<const float> values, DeviceVector& to) {
    if (values.empty()) {
      return {};
    }
    QUIRE_TRY(to, DeviceVector::make(device_.device_pool(), values.size()));
    return device::cuda::copy_async(to.data(), values.data(), values.size_bytes(),
                                    device_.compute_stream().get());
  }

  Status matrix(const kernels::PackedWeights& packed, DeviceMatrix& to) {
    if (packed.data() == nullptr) {
      return {};
    }
    if (packed.format() != kernels::WeightFormat::kBf16) {
      return {ErrorCode::kUnsupported,
              base::str_cat("weights of format ", kernels::format_name(packed.format()),
                            " are not supported on a GPU yet; use dtype=\"bfloat16\" without "
                            "quantize")};
    }
    to.outputs = packed.columns();
    to.inputs = packed.depth();
    const auto size = static_cast<std::size_t>(to.outputs * to.inputs);
    QUIRE_TRY(to.weights, DeviceBuffer<std::uint16_t>::make(device_.device_pool(), size));
    QUIRE_TRY(const auto staged,
              DeviceBuffer<std::byte>::make(device_.device_pool(), packed.size_bytes()));
    CUstream_st* const stream = device_.compute_stream().get();
    QUIRE_TRY_STATUS(
        device::cuda::copy_async(staged.data(), packed.data(), packed.size_bytes(), stream));
    return device::cuda::to_status(
        kernels::cuda::unpack_weights(staged.data(), to.outputs, to.inputs, to.weights.data(),
                                      stream),
        "unpack_weights");
  }

  Status linear(const LinearWeights& from, DeviceMatrix& to) {
    QUIRE_TRY_STATUS(matrix(from.weights, to));
    return vector(from.bias, to.bias);
  }

  Status layer(const LayerWeights& from, DeviceLayer& to) {
    QUIRE_TRY_STATUS(vector(from.attention_norm, to.attention_norm));
    QUIRE_TRY_STATUS(vector(from.mlp_norm, to.mlp_norm));
    QUIRE_TRY_STATUS(vector(from.q_norm, to.q_norm));
    QUIRE_TRY_STATUS(vector(from.k_norm, to.k_norm));
    QUIRE_TRY_STATUS(linear(from.qkv, to.qkv));
    QUIRE_TRY_STATUS(linear(from.output, to.output));
    QUIRE_TRY_STATUS(linear(from.gate_up, to.gate_up));
    return linear(from.down, to.down);
  }

 private:
  DeviceContext& device_;
};

}  // namespace

Result<DeviceWeights> upload(DeviceContext& device, const ModelConfig& config,
                             const DecoderWeights& weights) {
  Uploader uploader(device);
  DeviceWeights made;
  made.layers.resize(static_cast<std::size_t>(config.layers));
  for (std::size_t i = 0; i < made.layers.size(); ++i) {
    QUIRE_TRY_STATUS(uploader.layer(weights.layers[i], made.layers[i]));
  }
  if (!config.tied_embeddings) {
    QUIRE_TRY_STATUS(uploader.matrix(weights.embedding, made.embedding));
  }
  QUIRE_TRY_STATUS(uploader.matrix(weights.head, made.head));
  QUIRE_TRY_STATUS(uploader.vector(weights.final_norm, made.final_norm));
  QUIRE_TRY_STATUS(device.compute_stream().synchronize());
  QUIRE_TRY_STATUS(device.device_pool().shrink(0));  // the staging buffers
  return made;
}

}  // namespace quire::model::cuda
