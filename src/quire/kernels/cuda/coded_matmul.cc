#include "quire/kernels/cuda/coded_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/base/check.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/device_codes.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::to_status;

constexpr std::int64_t kFewRows = 16;  // that one look at the weights serves in registers alone

CodedWeights weights_of(const QuantisedProduct& product) {
  return {product.format, product.weights, product.outputs, product.inputs};
}

// Returns for how many outputs weights are expanded at a time. Their sums begin at multiples of 256
// bytes, which cuBLASLt takes for granted.
std::int64_t outputs_at_once(std::int64_t inputs) {
  constexpr std::int64_t kQuantum = 64;
  static_assert(kQuantum % kTileOutputs == 0);
  const std::int64_t fit = CodedMatMul::kExpandedBytes / (2 * inputs);
  return std::max<std::int64_t>(fit / kQuantum, 1) * kQuantum;
}

// Returns for how many rows images are made at a time.
std::int64_t rows_at_once(std::int64_t inputs) {
  constexpr std::int64_t kQuantum = 128;
  const std::int64_t bytes = wide_rows_bytes(CodeFormat::kQ4Minimum, kQuantum, inputs);
  return std::max<std::int64_t>(CodedMatMul::kImageBytes / std::max<std::int64_t>(bytes, 1), 1) *
         kQuantum;
}

}  // namespace

Result<CodedMatMul> CodedMatMul::create(device::cuda::DeviceContext& device, bool row_invariant,
                                        tensor::DType dtype, const MatrixSize& largest) {
  QUIRE_CHECK(dtype != tensor::DType::kFloat32, "activations are 16-bit floats");
  CodedMatMul made(device, row_invariant, dtype);
  if (can_multiply_wide()) {
    const std::int64_t most = rows_at_once(largest.inputs);
    const std::int64_t bytes =
        std::max(wide_rows_bytes(CodeFormat::kQ4Minimum, most, largest.inputs), kImageBytes);
    QUIRE_TRY(made.images_, device::cuda::DeviceBuffer<std::byte>::make(
                                device.device_pool(), static_cast<std::size_t>(bytes)));
  }
  if (!row_invariant) {
    const std::int64_t at_once =
        std::max(outputs_at_once(largest.inputs) * largest.inputs, kExpandedBytes / 2);
    const std::int64_t size = std::min(at_once, largest.outputs * largest.inputs);
    QUIRE_TRY(made.expanded_, device::cuda::DeviceBuffer<std::uint16_t>::make(
                                  device.device_pool(), static_cast<std::size_t>(size)));
  }
  return made;
}

Status CodedMatMul::run(const QuantisedProduct& product, MatMul& matmul) {
  QUIRE_CHECK(product.inputs % kLaneInputs == 0, "a lane loads eight inputs");
  if (!row_invariant_ && product.rows > kMostRows) {
    return run_expanded(product, matmul);
  }
  CodedProduct call{.dtype = dtype_,
                    .weights = weights_of(product),
                    .x = product.x,
                    .out = product.out,
                    .rows = product.rows,
                    .accumulate = product.accumulate};
  CUstream_st* const stream = device_->compute_stream().get();
  if (product.rows <= kFewRows || images_.size() == 0) {
    return to_status(multiply_few_rows(call, stream), "multiply_few_rows");
  }
  const std::int64_t most = rows_at_once(product.inputs);
  for (std::int64_t first = 0; first < product.rows; first += most) {
    call.x = product.x + first * product.inputs;
    call.out = product.out + first * product.outputs;
    call.rows = std::min(most, product.rows - first);
    QUIRE_TRY_STATUS(
        to_status(multiply_wide_rows(call, images_.data(), stream), "multiply_wide_rows"));
  }
  return {};
}

Status CodedMatMul::run_expanded(const QuantisedProduct& product, MatMul& matmul) {
  const std::int64_t most = outputs_at_once(product.inputs);
  for (std::int64_t first = 0; first < product.outputs; first += most) {
    const std::int64_t count = std::min(most, product.outputs - first);
    QUIRE_TRY_STATUS(to_status(expand_codes({.dtype = dtype_,
                                             .weights = weights_of(product),
                                             .first = first,
                                             .count = count,
                                             .out = expanded_.data()},
                                            device_->compute_stream().get()),
                               "expand_codes"));
    QUIRE_TRY_STATUS(matmul.run({.x = product.x,
                                 .weights = expanded_.data(),
                                 .out = product.out + first,
                                 .rows = product.rows,
                                 .outputs = count,
                                 .inputs = product.inputs,
                                 .accumulate = product.accumulate,
                                 .out_stride = product.outputs}));
  }
  return {};
}

}  // namespace quire::kernels::cuda
