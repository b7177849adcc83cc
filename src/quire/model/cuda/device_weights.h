// The weights of a decoder on a GPU: matrices bf16 or fp16 [outputs, inputs], or codes as
// kernels/device_codes.h arranges them; vectors fp32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/device_codes.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model::cuda {

using DeviceVector = device::cuda::DeviceBuffer<float>;

struct DeviceMatrix {
  device::cuda::DeviceBuffer<std::uint16_t> weights;  // empty when there are codes
  device::cuda::DeviceBuffer<std::byte> codes;
  std::optional<kernels::CodeFormat> format;  // of the codes
  DeviceVector bias;                          // [outputs] or empty
  std::int64_t outputs = 0, inputs = 0;
};

// Experts of a layer. Matrices hold those of all, one after the other; sizes are those of one.
struct DeviceExperts {
  DeviceVector router;                    // [experts, hidden]; empty in layers without experts
  DeviceVector router_bias, choice_bias;  // [experts] or empty
  DeviceMatrix gate_up, down;
  // The MLP for all rows beside them, if there is one, and the row of its gate.
  DeviceMatrix shared_gate_up, shared_down;
  DeviceVector shared_gate;  // [hidden] or empty
};

// A layer with a state, as StateWeights has it.
struct DeviceState {
  DeviceMatrix in, gates, out;
  DeviceVector conv, conv_bias, decay, decay_shift, skip, norm;
};

// Attention over latents, as LatentWeights has it. Matrices of heads are never codes.
struct DeviceLatents {
  DeviceVector query_norm, norm;
  DeviceMatrix queries;
  std::vector<DeviceMatrix> keys, values;  // [heads]
};

struct DeviceLayer {
  // Norms of inputs, and of what is added to the residual stream; empty where there is none.
  DeviceVector attention_norm, mlp_norm, attention_out_norm, mlp_out_norm;
  DeviceVector q_norm, k_norm;  // empty without QK norm
  DeviceVector sinks;           // [heads] or empty
  DeviceMatrix qkv, output, gate_up, down;
  DeviceExperts experts;
  DeviceState state;
  DeviceLatents latent;
};

struct DeviceWeights {
  tensor::DType dtype = tensor::DType::kBFloat16;  // of activations, and of matrices without codes
  tensor::DType embedding_dtype = tensor::DType::kBFloat16;
  DeviceMatrix embedding;  // empty when the head serves as such
  DeviceMatrix head;
  DeviceVector final_norm;
  std::vector<DeviceLayer> layers;
};

// Returns the matrices of a layer's experts, which it borrows.
[[nodiscard]] kernels::cuda::ExpertMatrices experts_of(const DeviceMatrix& matrix);

// Brings packed weights to their places, through pinned memory where there is some.
class WeightUploader {
 public:
  // Takes weights for activations of `dtype`, bf16 or fp16.
  WeightUploader(device::cuda::DeviceContext& device, const ModelConfig& config,
                 tensor::DType dtype);
  ~WeightUploader();
  WeightUploader(const WeightUploader&) = delete;
  WeightUploader& operator=(const WeightUploader&) = delete;

  // Has read what it is given when it returns. kUnsupported for a matrix of another type than the
  // activations, and for codes of a number of inputs that has no kernel. kOutOfBlocks when the
  // device has no room.
  [[nodiscard]] Status take(const WeightId& id, const kernels::PackedWeights& weights);
  [[nodiscard]] Status take(const WeightId& id, std::span<const float> values);

  // Waits for all that was taken.
  [[nodiscard]] Result<DeviceWeights> finish();

 private:
  // A part of what is copied, and when it has been.
  struct Buffer {
    device::cuda::PinnedBuffer<std::byte> bytes;
    std::optional<device::cuda::Event> read;
  };

  [[nodiscard]] Status check(const WeightId& id, const kernels::PackedWeights& weights) const;
  [[nodiscard]] Status reserve(const WeightId& id, DeviceMatrix& to);
  [[nodiscard]] Status arrange(const WeightId& id, const std::byte* packed, DeviceMatrix& to);
  [[nodiscard]] Status take_head(const WeightId& id, const kernels::PackedWeights& weights);
  [[nodiscard]] Status take_router(const WeightId& id, const kernels::PackedWeights& weights);
  [[nodiscard]] DeviceMatrix& matrix_of(const WeightId& id);
  [[nodiscard]] DeviceVector& vector_of(const WeightId& id);
  [[nodiscard]] Status send(std::span<const std::byte> from, std::byte* to);
  [[nodiscard]] Status send_piece(std::span<const std::byte> from, std::byte* to, Buffer& buffer);

  device::cuda::DeviceContext& device_;
  const std::size_t experts_;  // of a layer that has some
  DeviceWeights weights_;
  std::array<Buffer, 2> buffers_;
  std::size_t turn_ = 0;
};

}  // namespace quire::model::cuda
