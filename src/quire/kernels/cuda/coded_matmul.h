// Matrix products with quantised weights on the device. Up to kMostRows rows go to the kernels of
// coded_products.h. For more a part of the weights at a time is expanded to 16 bits, for MatMul. No
// CUDA header.
//
// With `row_invariant` nothing is expanded, and a row's bits depend on that row and the weights
// alone. Without it they also depend on whether there are many rows.
//
// Rows that meet e4m3 become e4m3 themselves (e4m3_rows.h). On Hopper the tensor cores multiply
// both as they are stored, however many rows there are, and nothing is expanded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/device_codes.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// out [rows, outputs] fp32 = x [rows, inputs] times weights [outputs, inputs] transposed; added to
// `out` where `accumulate`. Inputs are a multiple of 8.
struct QuantisedProduct {
  CodeFormat format = CodeFormat::kQ8;
  const std::byte* weights = nullptr;  // as device_codes.h arranges them
  const std::uint16_t* x = nullptr;    // of the type of the CodedMatMul
  float* out = nullptr;
  std::int64_t rows = 0;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  bool accumulate = false;
};

struct MatrixSize {
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

class CodedMatMul {
 public:
  // Bytes of weights that are expanded at a time; 64 outputs at least.
  static constexpr std::int64_t kExpandedBytes = std::int64_t{64} << 20;
  // Bytes of rows that are arranged or rounded at a time; 128 rows at least.
  static constexpr std::int64_t kImageBytes = std::int64_t{32} << 20;
  // Rows up to which nothing is expanded.
  static constexpr std::int64_t kMostRows = 256;

  // Borrows `device`; `dtype` is bf16 or fp16. `largest` has the most outputs and the most inputs
  // of all products. kOutOfBlocks when the device has no room for expanded weights.
  [[nodiscard]] static Result<CodedMatMul> create(device::cuda::DeviceContext& device,
                                                  bool row_invariant, tensor::DType dtype,
                                                  const MatrixSize& largest);

  // Queues it on the compute stream; `matmul` multiplies what is expanded.
  [[nodiscard]] Status run(const QuantisedProduct& product, MatMul& matmul);

 private:
  CodedMatMul(device::cuda::DeviceContext& device, bool row_invariant, tensor::DType dtype)
      : device_(&device), row_invariant_(row_invariant), dtype_(dtype) {}
  [[nodiscard]] Status run_expanded(const QuantisedProduct& product, MatMul& matmul);
  // Calls multiply(CodedProduct) for as many rows at a time as fit `images_`.
  template <class Multiply>
  [[nodiscard]] Status run_parts(const QuantisedProduct& product, const Multiply& multiply);
  // Multiplies e4m3 where the device has no kernel of many rows.
  [[nodiscard]] Status run_rounded(const QuantisedProduct& product, MatMul& matmul);

  device::cuda::DeviceContext* device_;
  bool row_invariant_;
  tensor::DType dtype_;
  bool wide_ = false;                             // the device has kernels of many rows
  device::cuda::DeviceBuffer<std::byte> images_;  // of rows, or rounded rows
  device::cuda::DeviceBuffer<std::uint16_t> expanded_;
};

}  // namespace quire::kernels::cuda
