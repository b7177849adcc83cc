// Products: the matrix products of a decoder on a GPU, whatever its weights are.
#pragma once

#include <cstdint>
#include <optional>

#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/coded_matmul.h"
#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/result.h"

namespace quire::model::cuda {

// Precondition: the matrix has codes.
[[nodiscard]] kernels::cuda::CodedWeights codes_of(const DeviceMatrix& matrix);

class Products {
 public:
  // Borrows `device`. Has memory for expanded weights where some of `weights` are codes.
  [[nodiscard]] static Result<Products> create(device::cuda::DeviceContext& device,
                                               const DeviceWeights& weights, bool deterministic);

  // Queues out [rows, outputs] = x [rows, inputs] times the matrix transposed on the compute
  // stream; added to `out` where `accumulate`. The bias is left out.
  [[nodiscard]] Status run(const DeviceMatrix& matrix, const std::uint16_t* x, std::int64_t rows,
                           float* out, bool accumulate);
  // Queues it with the bias, if there is one.
  [[nodiscard]] Status linear(const DeviceMatrix& matrix, const std::uint16_t* x, std::int64_t rows,
                              float* out, bool accumulate);

 private:
  Products(device::cuda::DeviceContext& device, kernels::cuda::MatMul matmul,
           std::optional<kernels::cuda::CodedMatMul> coded);

  device::cuda::DeviceContext* device_;
  kernels::cuda::MatMul matmul_;
  std::optional<kernels::cuda::CodedMatMul> coded_;
};

}  // namespace quire::model::cuda
