// ExpertMlp: the experts of a layer, on a GPU. Rows are grouped by expert on the device, so that a
// step with experts is recorded as any other is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/result.h"

namespace quire::model::cuda {

// Rows for the MLP of a layer.
struct MlpCall {
  const DeviceLayer& layer;
  const float* x = nullptr;                     // [rows, hidden]
  const kernels::cuda::Half* normed = nullptr;  // [rows, hidden] normed x
  std::int64_t rows = 0;
  float* out = nullptr;  // [rows, hidden], may be x
  bool accumulate = false;
};

// Holds the scratch of one decoder. A row's bits depend on that row and the weights alone.
class ExpertMlp {
 public:
  // Borrows all.
  ExpertMlp(device::cuda::DeviceContext& device, const ModelConfig& config,
            const DeviceWeights& weights);

  // Makes room for a step of so many rows. `recorded` knows the addresses.
  [[nodiscard]] Status reserve(std::int64_t rows, RecordedSteps& recorded);

  // Queues the weighted sum of what each row's experts make of it.
  [[nodiscard]] Status run(const MlpCall& call);

 private:
  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }
  [[nodiscard]] Status run_part(const MlpCall& call);
  [[nodiscard]] Status choose(const MlpCall& call);
  // Rows by expert, of a part of a step.
  struct Groups {
    std::int64_t places = 0;
    std::int64_t count = 0;  // of groups_
    int block_rows = 0;
  };
  [[nodiscard]] Result<Groups> group(const MlpCall& call);
  // Returns how the experts' weights of a layer are multiplied.
  [[nodiscard]] kernels::cuda::GroupedWeights kind_of(const DeviceExperts& experts) const;
  // Returns the most bytes of images that so many places of a layer take.
  [[nodiscard]] std::int64_t images_bytes(const DeviceExperts& experts, std::int64_t places) const;
  [[nodiscard]] Status multiply(const DeviceMatrix& matrix, const Groups& groups,
                                const kernels::cuda::Half* x, const std::int32_t* row_of,
                                float* out);

  device::cuda::DeviceContext& device_;
  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const bool is_wide_;  // the device has kernels for groups of many rows of codes
  // A part of a step has T rows, P = T * chosen places. E experts, H hidden, I of an expert.
  device::cuda::DeviceBuffer<float> logits_;                      // [T, E]
  device::cuda::DeviceBuffer<std::int32_t> ids_;                  // [T, chosen]
  device::cuda::DeviceBuffer<float> shares_;                      // [T, chosen]
  device::cuda::DeviceBuffer<std::int32_t> row_of_, places_of_;   // [P], [T, chosen]
  device::cuda::DeviceBuffer<kernels::cuda::ExpertRows> groups_;  // as most_expert_rows() says
  device::cuda::DeviceBuffer<float> gate_up_;                     // [P, 2 I]
  device::cuda::DeviceBuffer<kernels::cuda::Half> gated_;         // [P, I]
  device::cuda::DeviceBuffer<float> products_;                    // [P, H]
  device::cuda::DeviceBuffer<std::byte> images_;                  // of rows, in large groups
};

}  // namespace quire::model::cuda
