// Outputs of parts of a layer on their way to the residual stream, normed or scaled, and factors on
// values, on the device. A row's bits depend on that row alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace quire::kernels::cuda {

// out += x times the factor, where x [rows, width] is normed first if there is a weight.
struct ResidualParams {
  const float* x = nullptr;
  const float* norm = nullptr;  // [width] or null
  float epsilon = 0;
  float factor = 1;
  std::int64_t rows = 0;
  std::int32_t width = 0;
  float* out = nullptr;
};
[[nodiscard]] cudaError_t add_residual(const ResidualParams& params, cudaStream_t stream);

// Multiplies values by the factor, in place. Then a value v becomes cap * tanh(v / cap), unless the
// cap is 0.
struct ScaleParams {
  float* values = nullptr;
  std::int64_t count = 0;
  float factor = 1;
  float cap = 0;
};
[[nodiscard]] cudaError_t scale(const ScaleParams& params, cudaStream_t stream);

// Rows whose queries grow with their position.
struct GrowthParams {
  float* q = nullptr;  // [rows, width], row r at q + r * stride
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int32_t width = 0;
  const std::int32_t* positions = nullptr;  // [rows]
  double growth = 0;
  std::int32_t length = 1;
};

// Multiplies row r by 1 + growth * ln(1 + positions[r] / length), with the quotient rounded down.
[[nodiscard]] cudaError_t grow_queries(const GrowthParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
