// LatentRows: attention over latents (LatentShape) on a GPU. Queries meet latents as they are
// stored, so that one KV head serves all heads.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/products.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model::cuda {

// Keeps its arrays between steps. The engine thread calls.
class LatentRows {
 public:
  // Makes one for a backend. `config` and `products` outlive it.
  LatentRows(device::cuda::DeviceContext& device, const ModelConfig& config, Products& products,
             tensor::DType dtype)
      : device_(device), config_(config), products_(products), dtype_(dtype) {}

  // Makes room for a step of so many rows.
  [[nodiscard]] Status reserve(std::int64_t rows, RecordedSteps& recorded);
  // Queues qkv [rows, stride] of the normed input: queries of all heads, the key, the value.
  [[nodiscard]] Status project(const DeviceLayer& layer, const kernels::cuda::Half* normed,
                               std::int64_t rows, float* qkv, std::int64_t stride);
  // Queues what heads make of their sums of latents. Results are in values().
  [[nodiscard]] Status make_values(const DeviceLayer& layer, const kernels::cuda::Half* attended,
                                   std::int64_t rows);
  [[nodiscard]] const kernels::cuda::Half* values() const { return values_.data(); }

 private:
  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }
  [[nodiscard]] Status norm(float* x, const float* weight, std::int32_t width, std::int64_t rows,
                            std::int64_t stride);
  [[nodiscard]] Status store_latents(const float* latents, std::int64_t from_stride,
                                     std::int64_t rows, float* key, std::int64_t stride);
  [[nodiscard]] Status make_queries(const DeviceLayer& layer, const float* from,
                                    std::int64_t from_stride, std::int64_t rows, float* qkv,
                                    std::int64_t stride);
  [[nodiscard]] Status multiply_heads(const std::vector<DeviceMatrix>& matrices, std::int64_t rows);

  device::cuda::DeviceContext& device_;
  const ModelConfig& config_;
  Products& products_;
  const tensor::DType dtype_;
  device::cuda::DeviceBuffer<float> down_;     // [T, queries or what they are made of, latent, key]
  device::cuda::DeviceBuffer<float> queries_;  // [T, all heads]
  device::cuda::DeviceBuffer<kernels::cuda::Half> rounded_;  // [T, query rank]
  // Inputs and outputs of the products of heads; head_stride() numbers apart, [T, numbers] each.
  device::cuda::DeviceBuffer<kernels::cuda::Half> head_in_;
  device::cuda::DeviceBuffer<float> head_out_;
  device::cuda::DeviceBuffer<kernels::cuda::Half> values_;  // [T, heads, value size]
};

}  // namespace quire::model::cuda
