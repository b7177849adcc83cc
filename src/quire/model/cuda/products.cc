#include "quire/model/cuda/products.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "quire/base/check.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/coded_matmul.h"
#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/result.h"

namespace quire::model::cuda {
namespace {

// Returns the most outputs and the most inputs of matrices of codes; zeros without one.
kernels::cuda::MatrixSize largest_of(const DeviceWeights& weights) {
  kernels::cuda::MatrixSize largest;
  const auto look_at = [&](const DeviceMatrix& matrix) {
    if (matrix.format) {
      largest.outputs = std::max(largest.outputs, matrix.outputs);
      largest.inputs = std::max(largest.inputs, matrix.inputs);
    }
  };
  look_at(weights.head);
  for (const DeviceLayer& layer : weights.layers) {
    for (const DeviceMatrix* matrix :
         {&layer.qkv, &layer.output, &layer.gate_up, &layer.down, &layer.experts.shared_gate_up,
          &layer.experts.shared_down, &layer.state.in, &layer.state.gates, &layer.state.out,
          &layer.latent.queries}) {
      look_at(*matrix);
    }
  }
  return largest;
}

}  // namespace

kernels::cuda::CodedWeights codes_of(const DeviceMatrix& matrix) {
  QUIRE_CHECK(matrix.format.has_value(), "a matrix of codes");
  return {*matrix.format, matrix.codes.data(), matrix.outputs, matrix.inputs};
}

Result<Products> Products::create(device::cuda::DeviceContext& device, const DeviceWeights& weights,
                                  bool deterministic) {
  QUIRE_TRY(auto matmul, kernels::cuda::MatMul::create(device, deterministic, weights.dtype));
  std::optional<kernels::cuda::CodedMatMul> coded;
  if (const auto largest = largest_of(weights); largest.inputs > 0) {
    QUIRE_TRY(coded,
              kernels::cuda::CodedMatMul::create(device, deterministic, weights.dtype, largest));
  }
  return Products(device, std::move(matmul), std::move(coded));
}

Products::Products(device::cuda::DeviceContext& device, kernels::cuda::MatMul matmul,
                   std::optional<kernels::cuda::CodedMatMul> coded)
    : device_(&device), matmul_(std::move(matmul)), coded_(std::move(coded)) {}

Status Products::run(const DeviceMatrix& matrix, const std::uint16_t* x, std::int64_t rows,
                     float* out, bool accumulate) {
  if (matrix.format) {
    QUIRE_CHECK(coded_.has_value(), "create() saw every matrix");
    return coded_->run({.format = *matrix.format,
                        .weights = matrix.codes.data(),
                        .x = x,
                        .out = out,
                        .rows = rows,
                        .outputs = matrix.outputs,
                        .inputs = matrix.inputs,
                        .accumulate = accumulate},
                       matmul_);
  }
  return matmul_.run({.x = x,
                      .weights = matrix.weights.data(),
                      .out = out,
                      .rows = rows,
                      .outputs = matrix.outputs,
                      .inputs = matrix.inputs,
                      .accumulate = accumulate});
}

Status Products::linear(const DeviceMatrix& matrix, const std::uint16_t* x, std::int64_t rows,
                        float* out, bool accumulate) {
  QUIRE_TRY_STATUS(run(matrix, x, rows, out, accumulate));
  if (matrix.bias.data() == nullptr) {
    return {};
  }
  return device::cuda::to_status(kernels::cuda::add_bias(out, matrix.bias.data(), rows,
                                                         static_cast<std::int32_t>(matrix.outputs),
                                                         device_->compute_stream().get()),
                                 "add_bias");
}

}  // namespace quire::model::cuda
