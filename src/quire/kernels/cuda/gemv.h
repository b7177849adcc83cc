// Products of one row: reading the weights is all there is to it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/cuda/rows.h"

namespace quire::kernels::cuda {

// out [outputs] fp32 = weights [outputs, inputs] x, both bf16; added to `out` where `accumulate`.
// `inputs` is a multiple of 8, and both pointers are 16-byte aligned. Bytes: the weights once.
struct GemvParams {
  const Bf16* x = nullptr;
  const Bf16* weights = nullptr;
  float* out = nullptr;
  std::int64_t outputs = 0;
  std::int32_t inputs = 0;
  bool accumulate = false;
};
[[nodiscard]] cudaError_t gemv(const GemvParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
