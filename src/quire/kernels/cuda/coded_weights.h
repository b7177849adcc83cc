// Quantised weight matrices on the device, in the order of device_codes.h: how they get there, and
// what is read out of them beside products. All pointers are to device memory; calls return once
// the kernel is queued.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// Rearranges codes that lie packed as packed_weights.h describes. `packed` has the sizes of `out`.
[[nodiscard]] cudaError_t arrange_codes(const std::byte* packed, const CodedWeights& sizes,
                                        std::byte* out, cudaStream_t stream);

// out [count, inputs] of `dtype` = weights of outputs first to first + count - 1, rounded once.
// `first` is a multiple of 16 and `inputs` one of 8.
struct ExpandParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  CodedWeights weights;
  std::int64_t first = 0;
  std::int64_t count = 0;
  Half* out = nullptr;
};
[[nodiscard]] cudaError_t expand_codes(const ExpandParams& params, cudaStream_t stream);

// Does what embed() of rows.h does, with the weights that the CPU unpacks; `table` of `params` is
// not read.
[[nodiscard]] cudaError_t embed_codes(const CodedWeights& table, const EmbedParams& params,
                                      cudaStream_t stream);

}  // namespace quire::kernels::cuda
