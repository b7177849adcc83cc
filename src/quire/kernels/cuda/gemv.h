// Products of one row: reading the weights is all there is to it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// out [outputs] fp32 = weights [outputs, inputs] x, both of `dtype`; added to `out` where
// `accumulate`. `inputs` is a multiple of 8, and both pointers are 16-byte aligned. Bytes: the
// weights once.
struct GemvParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  const Half* x = nullptr;
  const Half* weights = nullptr;
  float* out = nullptr;
  std::int64_t outputs = 0;
  std::int32_t inputs = 0;
  bool accumulate = false;
};
[[nodiscard]] cudaError_t gemv(const GemvParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
