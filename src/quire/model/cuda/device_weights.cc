#include "quire/model/cuda/device_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "quire/base/str.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/weights.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model::cuda {
namespace {

using device::cuda::CudaStream;
using device::cuda::DeviceBuffer;
using device::cuda::Event;
using device::cuda::PinnedBuffer;

constexpr std::size_t kBufferBytes = std::size_t{16} << 20;

}  // namespace

WeightUploader::WeightUploader(device::cuda::DeviceContext& device, const ModelConfig& config)
    : device_(device) {
  weights_.layers.resize(static_cast<std::size_t>(config.layers));
  for (Buffer& buffer : buffers_) {
    if (auto pinned = PinnedBuffer<std::byte>::make(device.pinned_pool(), kBufferBytes);
        pinned.ok()) {
      buffer.bytes = std::move(pinned).value();
    }
  }
}

// Waits for the device: after an error too the buffers may not go while something is read from
// them.
WeightUploader::~WeightUploader() {
  [[maybe_unused]] const Status known_already = device_.compute_stream().synchronize();
}

DeviceMatrix& WeightUploader::matrix_of(const WeightId& id) {
  if (id.role == WeightRole::kEmbedding || id.role == WeightRole::kHead) {
    return id.role == WeightRole::kHead ? weights_.head : weights_.embedding;
  }
  DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(id.layer)];
  switch (id.role) {
    case WeightRole::kQkv:
      return layer.qkv;
    case WeightRole::kOutput:
      return layer.output;
    case WeightRole::kGateUp:
      return layer.gate_up;
    default:
      return layer.down;
  }
}

DeviceVector& WeightUploader::vector_of(const WeightId& id) {
  if (id.bias) {
    return matrix_of(id).bias;
  }
  if (id.role == WeightRole::kFinalNorm) {
    return weights_.final_norm;
  }
  DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(id.layer)];
  switch (id.role) {
    case WeightRole::kAttentionNorm:
      return layer.attention_norm;
    case WeightRole::kQNorm:
      return layer.q_norm;
    case WeightRole::kKNorm:
      return layer.k_norm;
    default:
      return layer.mlp_norm;
  }
}

// Copies a piece by way of pinned memory, once what was there before has been read.
Status WeightUploader::send_piece(std::span<const std::byte> from, std::byte* to, Buffer& buffer) {
  const CudaStream& stream = device_.compute_stream();
  if (buffer.read) {
    QUIRE_TRY_STATUS(buffer.read->synchronize());
  } else {
    QUIRE_TRY(Event read, Event::create());
    buffer.read = std::move(read);
  }
  std::memcpy(buffer.bytes.data(), from.data(), from.size());
  QUIRE_TRY_STATUS(device::cuda::copy_async(to, buffer.bytes.data(), from.size(), stream.get()));
  return stream.record(*buffer.read);
}

// Copies bytes to the device. One piece is on its way while the next is copied to pinned memory.
Status WeightUploader::send(std::span<const std::byte> from, std::byte* to) {
  if (std::ranges::any_of(buffers_, [](const Buffer& each) { return each.bytes.size() == 0; })) {
    return device::cuda::copy_async(to, from.data(), from.size(), device_.compute_stream().get());
  }
  for (; !from.empty(); turn_ = 1 - turn_) {
    const std::size_t count = std::min(from.size(), kBufferBytes);
    QUIRE_TRY_STATUS(send_piece(from.first(count), to, buffers_[turn_]));
    from = from.subspan(count);
    to += count;
  }
  return {};
}

Status WeightUploader::take(const WeightId& id, std::span<const float> values) {
  DeviceVector& to = vector_of(id);
  QUIRE_TRY(to, DeviceVector::make(device_.device_pool(), values.size()));
  return send(std::as_bytes(values), reinterpret_cast<std::byte*>(to.data()));
}

// Checks the format of a matrix. The first matrix decides the dtype of all.
Status WeightUploader::check_format(kernels::WeightFormat format) {
  const bool half = format == kernels::WeightFormat::kF16;
  const tensor::DType dtype = half ? tensor::DType::kFloat16 : tensor::DType::kBFloat16;
  if ((!half && format != kernels::WeightFormat::kBf16) ||
      (has_matrix_ && dtype != weights_.dtype)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("weights of format ", kernels::format_name(format),
                          " are not supported on a GPU yet; use dtype=\"bfloat16\" or \"float16\" "
                          "without quantize")};
  }
  weights_.dtype = dtype;
  has_matrix_ = true;
  return {};
}

Status WeightUploader::take(const WeightId& id, const kernels::PackedWeights& weights) {
  QUIRE_TRY_STATUS(check_format(weights.format()));
  DeviceMatrix& to = matrix_of(id);
  to.outputs = weights.columns();
  to.inputs = weights.depth();
  const auto size = static_cast<std::size_t>(to.outputs * to.inputs);
  QUIRE_TRY(to.weights, DeviceBuffer<std::uint16_t>::make(device_.device_pool(), size));
  QUIRE_TRY(const auto packed,
            DeviceBuffer<std::byte>::make(device_.device_pool(), weights.size_bytes()));
  QUIRE_TRY_STATUS(send({weights.data(), weights.size_bytes()}, packed.data()));
  return device::cuda::to_status(
      kernels::cuda::unpack_weights(packed.data(), to.outputs, to.inputs, to.weights.data(),
                                    device_.compute_stream().get()),
      "unpack_weights");
}

Result<DeviceWeights> WeightUploader::finish() {
  QUIRE_TRY_STATUS(device_.compute_stream().synchronize());
  QUIRE_TRY_STATUS(device_.device_pool().shrink(0));  // returns the memory of packed weights
  return std::move(weights_);
}

}  // namespace quire::model::cuda
