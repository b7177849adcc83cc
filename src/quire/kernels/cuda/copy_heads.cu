#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "quire/kernels/cuda/copy_heads.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// A block to a head of a row.
template <tensor::DType T, class From, class To>
__global__ void __launch_bounds__(kThreads) copy_heads_kernel(const HeadCopy<From, To> params) {
  begin_kernel();
  const std::int64_t row = blockIdx.x, head = blockIdx.y;
  To* const to = params.to + row * params.to_row + head * params.to_head;
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
    const From x = params.from == nullptr
                       ? From{}
                       : params.from[row * params.from_row + head * params.from_head + i];
    if constexpr (std::is_same_v<From, To>) {
      to[i] = x;
    } else {
      to[i] = Element<T>::round(x);
    }
  }
}

template <class From, class To>
cudaError_t launch(const HeadCopy<From, To>& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  const dim3 blocks(static_cast<unsigned>(params.rows), static_cast<unsigned>(params.heads));
  return launch_for_dtype(params.dtype, [&]<tensor::DType T>() {
    return launch_early(copy_heads_kernel<T, From, To>, {blocks, kThreads}, stream, params);
  });
}

}  // namespace

cudaError_t copy_heads(const HeadCopy<float, float>& params, cudaStream_t stream) {
  return launch(params, stream);
}
cudaError_t copy_heads(const HeadCopy<float, Half>& params, cudaStream_t stream) {
  return launch(params, stream);
}
cudaError_t copy_heads(const HeadCopy<Half, Half>& params, cudaStream_t stream) {
  return launch(params, stream);
}

}  // namespace quire::kernels::cuda
