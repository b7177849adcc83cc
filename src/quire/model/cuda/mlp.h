// Mlp: the part of a layer behind its attention, on a GPU: one MLP for all rows, or experts and
// what is beside them.
#pragma once

#include <cstdint>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/expert_mlp.h"
#include "quire/model/cuda/products.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model::cuda {

// Holds the scratch of one decoder.
class Mlp {
 public:
  // Borrows all.
  Mlp(device::cuda::DeviceContext& device, const ModelConfig& config, const DeviceWeights& weights,
      Products& products)
      : device_(device),
        config_(config),
        dtype_(weights.dtype),
        products_(products),
        experts_(device, config, weights) {}

  // Makes room for a step of so many rows. `recorded` knows the addresses.
  [[nodiscard]] Status reserve(std::int64_t rows, RecordedSteps& recorded);

  // Queues the layer's MLP of the rows.
  [[nodiscard]] Status run(const MlpCall& call);

 private:
  [[nodiscard]] bool has(MlpKind kind) const;
  // Arguments of run_pair: out = down(activation(gate(normed)) * up(normed)).
  struct Pair {
    const DeviceMatrix& gate_up;
    const DeviceMatrix& down;
    float* out = nullptr;
    bool accumulate = false;
  };
  [[nodiscard]] Status run_pair(const MlpCall& call, const Pair& pair);
  [[nodiscard]] Status run_shared(const MlpCall& call);

  device::cuda::DeviceContext& device_;
  const ModelConfig& config_;
  const tensor::DType dtype_;
  Products& products_;
  ExpertMlp experts_;
  // T rows, H hidden, I the most of MLPs for all rows.
  device::cuda::DeviceBuffer<float> gate_up_;              // [T, 2 I]
  device::cuda::DeviceBuffer<kernels::cuda::Half> gated_;  // [T, I]
  device::cuda::DeviceBuffer<float> shared_;               // [T, H], of an MLP beside experts
  device::cuda::DeviceBuffer<float> shared_gates_;         // [T]
};

}  // namespace quire::model::cuda
