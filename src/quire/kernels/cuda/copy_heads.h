// Parts of rows that change places on the device, head by head, and are rounded on the way.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// Head h of row r goes from `from` + r * from_row + h * from_head to a place of the same kind.
template <class From, class To>
struct HeadCopy {
  tensor::DType dtype = tensor::DType::kBFloat16;  // of what is rounded
  const From* from = nullptr;                      // null: zeros
  std::int64_t from_row = 0, from_head = 0;
  To* to = nullptr;
  std::int64_t to_row = 0, to_head = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 1;
  std::int32_t width = 0;  // numbers of a head
};
[[nodiscard]] cudaError_t copy_heads(const HeadCopy<float, float>& params, cudaStream_t stream);
[[nodiscard]] cudaError_t copy_heads(const HeadCopy<float, Half>& params, cudaStream_t stream);
[[nodiscard]] cudaError_t copy_heads(const HeadCopy<Half, Half>& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
