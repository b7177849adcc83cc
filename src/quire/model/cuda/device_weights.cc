#include "quire/model/cuda/device_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/weights.h"
#include "quire/kernels/device_codes.h"
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

// Returns how codes of a packed format become weights; nothing for floats.
std::optional<kernels::CodeFormat> code_format(kernels::WeightFormat format) {
  switch (format) {
    case kernels::WeightFormat::kQ8g32:
      return kernels::CodeFormat::kQ8;
    case kernels::WeightFormat::kQ4g32:
      return kernels::CodeFormat::kQ4;
    case kernels::WeightFormat::kQ4m32:
      return kernels::CodeFormat::kQ4Minimum;
    case kernels::WeightFormat::kT4g32:
      return kernels::CodeFormat::kTable;
    case kernels::WeightFormat::kT4g16:
      return kernels::CodeFormat::kTableHalves;
    case kernels::WeightFormat::kQ2m16:
      return kernels::CodeFormat::kTwoMinimum;
    case kernels::WeightFormat::kF8:
      return kernels::CodeFormat::kE4m3;
    default:
      return std::nullopt;
  }
}

std::optional<tensor::DType> half_type(kernels::WeightFormat format) {
  if (format == kernels::WeightFormat::kBf16) {
    return tensor::DType::kBFloat16;
  }
  return format == kernels::WeightFormat::kF16 ? std::optional(tensor::DType::kFloat16)
                                               : std::nullopt;
}

// Returns the number of a matrix or vector among those of its layer's experts.
std::size_t index_of(const WeightId& id) {
  return static_cast<std::size_t>(std::max(id.expert, 0));
}

// Returns the bytes of codes, and the number of values, of a matrix or of that of one expert.
std::size_t code_bytes(const DeviceMatrix& matrix) {
  return static_cast<std::size_t>(
      kernels::device_code_bytes(*matrix.format, matrix.outputs, matrix.inputs));
}
std::size_t num_values(const DeviceMatrix& matrix) {
  return static_cast<std::size_t>(matrix.outputs * matrix.inputs);
}

}  // namespace

kernels::cuda::ExpertMatrices experts_of(const DeviceMatrix& matrix) {
  return {.data = matrix.format ? matrix.codes.data()
                                : reinterpret_cast<const std::byte*>(matrix.weights.data()),
          .format = matrix.format,
          .outputs = matrix.outputs,
          .inputs = matrix.inputs};
}

WeightUploader::WeightUploader(device::cuda::DeviceContext& device, const ModelConfig& config,
                               tensor::DType dtype)
    : device_(device), experts_(static_cast<std::size_t>(config.experts.count)) {
  weights_.dtype = dtype;
  weights_.layers.resize(static_cast<std::size_t>(config.layers));
  for (DeviceLayer& layer : weights_.layers) {
    const std::size_t heads = config.latent.is_there() ? static_cast<std::size_t>(config.heads) : 0;
    layer.latent.keys.resize(heads);
    layer.latent.values.resize(heads);
  }
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
    case WeightRole::kExpertGateUp:
      return layer.experts.gate_up;
    case WeightRole::kExpertDown:
      return layer.experts.down;
    case WeightRole::kSharedGateUp:
      return layer.experts.shared_gate_up;
    case WeightRole::kSharedDown:
      return layer.experts.shared_down;
    case WeightRole::kLatentQueries:
      return layer.latent.queries;
    case WeightRole::kLatentKeys:
      return layer.latent.keys[static_cast<std::size_t>(id.head)];
    case WeightRole::kLatentValues:
      return layer.latent.values[static_cast<std::size_t>(id.head)];
    case WeightRole::kStateIn:
      return layer.state.in;
    case WeightRole::kStateGates:
      return layer.state.gates;
    case WeightRole::kStateOut:
      return layer.state.out;
    default:
      return layer.down;
  }
}

DeviceVector& WeightUploader::vector_of(const WeightId& id) {
  if (id.role == WeightRole::kFinalNorm) {
    return weights_.final_norm;
  }
  if (id.bias && id.role != WeightRole::kRouter && id.role != WeightRole::kConv) {
    return matrix_of(id).bias;
  }
  DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(id.layer)];
  switch (id.role) {
    case WeightRole::kRouter:
      return id.bias ? layer.experts.router_bias : layer.experts.router;
    case WeightRole::kChoiceBias:
      return layer.experts.choice_bias;
    case WeightRole::kSharedGate:
      return layer.experts.shared_gate;
    case WeightRole::kConv:
      return id.bias ? layer.state.conv_bias : layer.state.conv;
    case WeightRole::kDecay:
      return layer.state.decay;
    case WeightRole::kDecayShift:
      return layer.state.decay_shift;
    case WeightRole::kStateSkip:
      return layer.state.skip;
    case WeightRole::kStateNorm:
      return layer.state.norm;
    case WeightRole::kLatentQueryNorm:
      return layer.latent.query_norm;
    case WeightRole::kLatentNorm:
      return layer.latent.norm;
    case WeightRole::kAttentionNorm:
      return layer.attention_norm;
    case WeightRole::kAttentionOutNorm:
      return layer.attention_out_norm;
    case WeightRole::kMlpOutNorm:
      return layer.mlp_out_norm;
    case WeightRole::kSinks:
      return layer.sinks;
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
  if (id.expert <= 0) {
    const std::size_t count = id.expert < 0 ? 1 : experts_;
    QUIRE_TRY(to, DeviceVector::make(device_.device_pool(), count * values.size()));
  }
  return send(std::as_bytes(values),
              reinterpret_cast<std::byte*>(to.data() + index_of(id) * values.size()));
}

Status WeightUploader::check(const WeightId& id, const kernels::PackedWeights& weights) const {
  const kernels::WeightFormat format = weights.format();
  if (id.expert >= 0 && format == kernels::WeightFormat::kF8) {
    return {ErrorCode::kUnsupported,
            R"(a GPU has no kernel for experts of fp8 weights; use quantize="q8g32")"};
  }
  const bool is_expert = id.expert >= 0;
  if ((code_format(format) || is_expert) && weights.depth() % kernels::kLaneInputs != 0) {
    return {ErrorCode::kUnsupported,
            base::str_cat("a GPU computes ", is_expert ? "experts" : kernels::format_name(format),
                          is_expert ? "" : " weights", " of a multiple of ", kernels::kLaneInputs,
                          " inputs, not ", weights.depth(),
                          is_expert ? R"(; open with device="cpu")"
                                    : R"(; open with dtype="bfloat16" without quantize)")};
  }
  if (code_format(format)) {
    return {};
  }
  const bool is_table = id.role == WeightRole::kEmbedding;  // rows of it are widened, no more
  if (const auto dtype = half_type(format); dtype && (is_table || *dtype == weights_.dtype)) {
    return {};
  }
  return {ErrorCode::kUnsupported,
          base::str_cat("weights of format ", kernels::format_name(format),
                        " have no kernel on a GPU that computes in ",
                        tensor::dtype_name(weights_.dtype),
                        R"(; use dtype="bfloat16" or "float16", or device="cpu")")};
}

// Makes room for the matrix, or with the first expert for those of all.
Status WeightUploader::reserve(const WeightId& id, DeviceMatrix& to) {
  if (id.expert > 0) {
    return {};
  }
  const std::size_t count = id.expert < 0 ? 1 : experts_;
  if (to.format) {
    QUIRE_TRY(to.codes,
              DeviceBuffer<std::byte>::make(device_.device_pool(), count * code_bytes(to)));
    return {};
  }
  QUIRE_TRY(to.weights,
            DeviceBuffer<std::uint16_t>::make(device_.device_pool(), count * num_values(to)));
  return {};
}

// Rearranges packed weights that are on the device.
Status WeightUploader::arrange(const WeightId& id, const std::byte* packed, DeviceMatrix& to) {
  CUstream_st* const stream = device_.compute_stream().get();
  if (to.format) {
    return device::cuda::to_status(
        kernels::cuda::arrange_codes(
            packed,
            {.format = *to.format, .data = nullptr, .outputs = to.outputs, .inputs = to.inputs},
            to.codes.data() + index_of(id) * code_bytes(to), stream),
        "arrange_codes");
  }
  return device::cuda::to_status(
      kernels::cuda::unpack_weights(packed, to.outputs, to.inputs,
                                    to.weights.data() + index_of(id) * num_values(to), stream),
      "unpack_weights");
}

// Takes a router as fp32 rows.
Status WeightUploader::take_router(const WeightId& id, const kernels::PackedWeights& weights) {
  const auto depth = static_cast<std::size_t>(weights.depth());
  std::vector<float> rows(static_cast<std::size_t>(weights.columns()) * depth);
  for (std::int64_t row = 0; row < weights.columns(); ++row) {
    weights.unpack_row(row, std::span(rows).subspan(static_cast<std::size_t>(row) * depth, depth));
  }
  return take(id, rows);
}

// Takes a matrix of a head as numbers of the activations' type, whatever it is packed as. Codes
// have no kernel for as few inputs as a head may have.
Status WeightUploader::take_head(const WeightId& id, const kernels::PackedWeights& weights) {
  DeviceMatrix& to = matrix_of(id);
  to.outputs = weights.columns();
  to.inputs = weights.depth();
  const bool is_fp16 = weights_.dtype == tensor::DType::kFloat16;
  const auto depth = static_cast<std::size_t>(to.inputs);
  std::vector<float> row(depth);
  std::vector<std::uint16_t> numbers;
  numbers.reserve(num_values(to));
  for (std::int64_t i = 0; i < to.outputs; ++i) {
    weights.unpack_row(i, row);
    for (const float x : row) {
      numbers.push_back(is_fp16 ? tensor::float_to_fp16(x) : tensor::float_to_bf16(x));
    }
  }
  QUIRE_TRY(to.weights, DeviceBuffer<std::uint16_t>::make(device_.device_pool(), numbers.size()));
  QUIRE_TRY_STATUS(send(std::as_bytes(std::span<const std::uint16_t>(numbers)),
                        reinterpret_cast<std::byte*>(to.weights.data())));
  return device_.compute_stream().synchronize();  // the numbers go
}

Status WeightUploader::take(const WeightId& id, const kernels::PackedWeights& weights) {
  if (is_router(id.role)) {
    return take_router(id, weights);
  }
  if (id.head >= 0) {
    return take_head(id, weights);
  }
  QUIRE_TRY_STATUS(check(id, weights));
  DeviceMatrix& to = matrix_of(id);
  to.outputs = weights.columns();
  to.inputs = weights.depth();
  to.format = code_format(weights.format());
  if (id.role == WeightRole::kEmbedding) {
    weights_.embedding_dtype = half_type(weights.format()).value_or(weights_.dtype);
  }
  QUIRE_TRY(const auto packed,
            DeviceBuffer<std::byte>::make(device_.device_pool(), weights.size_bytes()));
  QUIRE_TRY_STATUS(send({weights.data(), weights.size_bytes()}, packed.data()));
  QUIRE_TRY_STATUS(reserve(id, to));
  return arrange(id, packed.data(), to);
}

Result<DeviceWeights> WeightUploader::finish() {
  QUIRE_TRY_STATUS(device_.compute_stream().synchronize());
  QUIRE_TRY_STATUS(device_.device_pool().shrink(0));  // returns the memory of packed weights
  return std::move(weights_);
}

}  // namespace quire::model::cuda
