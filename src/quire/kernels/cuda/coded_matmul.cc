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
#include "quire/kernels/cuda/e4m3_products.h"
#include "quire/kernels/cuda/e4m3_rows.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/device_codes.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::to_status;

constexpr CodeFormat kLargestImages = CodeFormat::kTwoMinimum;
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
  const std::int64_t bytes = wide_rows_bytes(kLargestImages, kQuantum, inputs);
  return std::max<std::int64_t>(CodedMatMul::kImageBytes / std::max<std::int64_t>(bytes, 1), 1) *
         kQuantum;
}

}  // namespace

Result<CodedMatMul> CodedMatMul::create(device::cuda::DeviceContext& device, bool row_invariant,
                                        tensor::DType dtype, const MatrixSize& largest) {
  QUIRE_CHECK(dtype != tensor::DType::kFloat32, "activations are 16-bit floats");
  CodedMatMul made(device, row_invariant, dtype);
  made.wide_ = can_multiply_wide();
  const std::int64_t most = rows_at_once(largest.inputs);
  const std::int64_t bytes =
      std::max(wide_rows_bytes(kLargestImages, most, largest.inputs), kImageBytes);
  QUIRE_TRY(made.images_, device::cuda::DeviceBuffer<std::byte>::make(
                              device.device_pool(), static_cast<std::size_t>(bytes)));
  if (!row_invariant) {
    const std::int64_t at_once =
        std::max(outputs_at_once(largest.inputs) * largest.inputs, kExpandedBytes / 2);
    const std::int64_t size = std::min(at_once, largest.outputs * largest.inputs);
    QUIRE_TRY(made.expanded_, device::cuda::DeviceBuffer<std::uint16_t>::make(
                                  device.device_pool(), static_cast<std::size_t>(size)));
  }
  return made;
}

template <class Multiply>
Status CodedMatMul::run_parts(const QuantisedProduct& product, const Multiply& multiply) {
  const std::int64_t most = rows_at_once(product.inputs);
  for (std::int64_t first = 0; first < product.rows; first += most) {
    QUIRE_TRY_STATUS(multiply(CodedProduct{.dtype = dtype_,
                                           .weights = weights_of(product),
                                           .x = product.x + first * product.inputs,
                                           .out = product.out + first * product.outputs,
                                           .rows = std::min(most, product.rows - first),
                                           .accumulate = product.accumulate}));
  }
  return {};
}

Status CodedMatMul::run(const QuantisedProduct& product, MatMul& matmul) {
  QUIRE_CHECK(product.inputs % kLaneInputs == 0, "a lane loads eight inputs");
  CUstream_st* const stream = device_->compute_stream().get();
  const bool e4m3 = product.format == CodeFormat::kE4m3;
  if (e4m3 && !wide_) {
    return run_rounded(product, matmul);
  }
  if (!e4m3 && !row_invariant_ && product.rows > kMostRows) {
    return run_expanded(product, matmul);
  }
  return run_parts(product, [&](const CodedProduct& call) -> Status {
    if (e4m3) {
      return to_status(multiply_e4m3(call, images_.data(), stream), "multiply_e4m3");
    }
    if (product.rows <= kFewRows || !wide_) {
      return to_status(multiply_few_rows(call, stream), "multiply_few_rows");
    }
    return to_status(multiply_wide_rows(call, images_.data(), stream), "multiply_wide_rows");
  });
}

Status CodedMatMul::run_rounded(const QuantisedProduct& product, MatMul& matmul) {
  CUstream_st* const stream = device_->compute_stream().get();
  auto* const rounded = reinterpret_cast<std::uint16_t*>(images_.data());
  const bool expanded = !row_invariant_ && product.rows > kMostRows;
  return run_parts(product, [&](CodedProduct call) -> Status {
    auto* const scales = reinterpret_cast<float*>(rounded + call.rows * product.inputs);
    QUIRE_TRY_STATUS(to_status(round_rows({.dtype = dtype_,
                                           .x = call.x,
                                           .rows = call.rows,
                                           .inputs = product.inputs,
                                           .out = rounded,
                                           .scales = expanded ? nullptr : scales},
                                          stream),
                               "round_rows"));
    if (expanded) {
      QuantisedProduct part = product;
      part.x = rounded;
      part.out = call.out;
      part.rows = call.rows;
      return run_expanded(part, matmul);
    }
    call.x = rounded;
    call.row_scales = scales;
    return to_status(multiply_few_rows(call, stream), "multiply_few_rows");
  });
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
