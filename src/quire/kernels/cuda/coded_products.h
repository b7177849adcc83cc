// Products with quantised weights on a GPU, the codes becoming 16-bit floats in registers. The
// tensor cores multiply activations with codes, exactly, and every group's sum meets its scale in
// fp32. An output sums its inputs in kSlices slices (device_codes.h) whatever kernel serves it. So
// a row's bits depend on that row and the weights alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// out [rows, outputs] fp32 = x [rows, inputs] of `dtype` times the weights transposed; added to
// `out` where `accumulate`. Inputs are a multiple of 8, and x is 16-byte aligned.
struct CodedProduct {
  tensor::DType dtype = tensor::DType::kBFloat16;
  CodedWeights weights;
  const Half* x = nullptr;
  float* out = nullptr;
  std::int64_t rows = 0;
  bool accumulate = false;
  const float* row_scales = nullptr;  // of e4m3: factors of whole rows, whose codes x has
};

// Multiplies with the slices of an output as warps of a block, so that few rows cost what reading
// the weights does. Reads the weights once for every 16 rows.
[[nodiscard]] cudaError_t multiply_few_rows(const CodedProduct& product, cudaStream_t stream);

// Returns whether the current device has multiply_wide_rows(): on Hopper, with code for it.
[[nodiscard]] bool can_multiply_wide();
// Returns the bytes that the images of so many rows take.
[[nodiscard]] std::int64_t wide_rows_bytes(CodeFormat format, std::int64_t rows,
                                           std::int64_t inputs);
// Multiplies with warpgroups of Hopper, up to 128 rows for each look at the weights. Arranges the
// rows in `images` first, of wide_rows_bytes().
[[nodiscard]] cudaError_t multiply_wide_rows(const CodedProduct& product, std::byte* images,
                                             cudaStream_t stream);

}  // namespace quire::kernels::cuda
