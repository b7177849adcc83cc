// StateLayers: what layers with a state compute between their two projections, on a GPU. Rows are
// updated one after the other in fp32, as on the CPU (model/state_layers.h).
#pragma once

#include <cstdint>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/state_view.h"

namespace quire::model::cuda {

class StateLayers {
 public:
  // Borrows all. Results are of `dtype`.
  StateLayers(device::cuda::DeviceContext& device, const ModelConfig& config,
              const DeviceStep& step, tensor::DType dtype)
      : device_(device),
        config_(config),
        step_(step),
        dtype_(dtype),
        geometry_(config.state_geometry()) {}

  // Makes room for a step of so many rows. `recorded` knows the addresses.
  [[nodiscard]] Status reserve(std::int64_t rows, RecordedSteps& recorded);

  // Room for the projected gates of a delta rule, [rows, 2 * value heads].
  [[nodiscard]] float* gates() const { return gates_.data(); }

  struct Call {
    const DeviceState& weights;
    std::int32_t group_index = 0;  // of the layer, among those with a state
    const float* in = nullptr;     // [rows, in_width] projected
  };
  // Queues the mixing of the step's rows. Stores the layer's part of the states behind them.
  // Results are in mixed().
  [[nodiscard]] Status mix(const Call& call);
  [[nodiscard]] const kernels::cuda::Half* mixed() const { return mixed_.data(); }

 private:
  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }
  [[nodiscard]] std::int64_t rows() const { return step_.shape().rows; }
  [[nodiscard]] kernels::cuda::LayerStates states(const Call& call) const;
  [[nodiscard]] Status mix_short(const Call& call);
  [[nodiscard]] Status mix_delta(const Call& call);
  [[nodiscard]] Status mix_scan(const Call& call);
  [[nodiscard]] Status convolve(const kernels::cuda::ConvParams& params);
  // Parts of the convolved channels, by their first one.
  struct Channels {
    std::int32_t query = 0, key = 0, value = 0;
  };
  [[nodiscard]] Status update(const Call& call, const Channels& channels);
  [[nodiscard]] Status gate(const kernels::cuda::RowGateParams& params);
  [[nodiscard]] Status norm_heads(const Call& call, std::int32_t heads);

  device::cuda::DeviceContext& device_;
  const ModelConfig& config_;
  const DeviceStep& step_;
  const tensor::DType dtype_;
  const tensor::StateGeometry geometry_;
  device::cuda::DeviceBuffer<float> convolved_;            // [T, channels]
  device::cuda::DeviceBuffer<float> gates_;                // [T, 2 * value heads]
  device::cuda::DeviceBuffer<float> updated_;              // [T, out_width]
  device::cuda::DeviceBuffer<kernels::cuda::Half> mixed_;  // [T, out_width]
};

}  // namespace quire::model::cuda
