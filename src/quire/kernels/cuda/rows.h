// Row operations of a decoder on the device: look-up, norms, gates. The residual stream is fp32,
// the inputs of matrix products are bf16 or
// fp16. All pointers are to device memory; calls return once the
// kernel is queued. A row's bits depend on that row alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/activation.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

using Half = std::uint16_t;  // the bits of a bf16 or an fp16: `dtype` says which

// out[t] = row of table [vocab, width]: chosen[from[t]], or ids[t] where from[t] is below 0.
struct EmbedParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  const Half* table = nullptr;
  const std::int32_t* ids = nullptr;
  const std::int32_t* from = nullptr;
  const std::int32_t* chosen = nullptr;  // a token that could not be chosen, -1, counts as 0
  std::int64_t rows = 0;
  std::int32_t width = 0;
  float* out = nullptr;
};
[[nodiscard]] cudaError_t embed(const EmbedParams& params, cudaStream_t stream);

// out = x / sqrt(mean(x^2) + epsilon) * weight; x [rows, width] -> 16-bit [rows, width].
struct NormParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  const float* x = nullptr;
  const float* weight = nullptr;
  float epsilon = 0;
  std::int64_t rows = 0;
  std::int32_t width = 0;
  Half* out = nullptr;
};
[[nodiscard]] cudaError_t rms_norm(const NormParams& params, cudaStream_t stream);

// Normalises each head so, in place: row r begins at x + r * stride with `heads` heads.
struct HeadNormParams {
  float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  const float* weight = nullptr;
  std::int32_t weight_stride = 0;  // from a head's weights to the next one's; 0: they share them
  float epsilon = 0;
};
[[nodiscard]] cudaError_t rms_norm_heads(const HeadNormParams& params, cudaStream_t stream);

// Adds `bias` to each row of x [rows, width].
[[nodiscard]] cudaError_t add_bias(float* x, const float* bias, std::int64_t rows,
                                   std::int32_t width, cudaStream_t stream);

// out[r][i] = activation(gate_up[r][i]) * gate_up[r][width + i]. Without gates a row has `width`
// numbers, which are both factors.
struct GateParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  Activation activation = Activation::kSilu;
  bool has_gates = true;
  const float* gate_up = nullptr;
  std::int64_t rows = 0;
  std::int32_t width = 0;
  Half* out = nullptr;
};
[[nodiscard]] cudaError_t gate_mul(const GateParams& params, cudaStream_t stream);

// Copies row rows[i] of x [*, width] to out[i].
[[nodiscard]] cudaError_t gather_rows(const float* x, const std::int32_t* rows, std::int64_t count,
                                      std::int32_t width, float* out, cudaStream_t stream);

}  // namespace quire::kernels::cuda
