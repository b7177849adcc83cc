// Weight matrices on the device: bf16 or fp16, row-major [outputs, inputs], as the matrix products
// want them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/rows.h"

namespace quire::kernels::cuda {

// Rearranges bf16 or fp16 weights packed as kernels/packed_weights.h describes, already on the
// device. `packed` and `out` do not overlap. Padding is dropped.
[[nodiscard]] cudaError_t unpack_weights(const std::byte* packed, std::int64_t outputs,
                                         std::int64_t inputs, Half* out, cudaStream_t stream);

}  // namespace quire::kernels::cuda
