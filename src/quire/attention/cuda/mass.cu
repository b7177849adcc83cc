#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/mass.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {
namespace {

using kernels::cuda::Element;
using tensor::DType;

constexpr int kThreads = 128;
constexpr float kLog2E = 1.44269504088896f;

// Adds the mass of one token per block; its threads take (query, head) pairs. Sums have a fixed
// order.
template <DType T>
__global__ void __launch_bounds__(kThreads) mass_kernel(const MassArgs args) {
  __shared__ double sums[kThreads];
  const int token = args.first_token + static_cast<int>(blockIdx.x);
  const int block = token / args.kv.block_tokens, dim = args.kv.head_dim;
  const int group = args.heads / args.kv_heads;
  const std::uint16_t* keys = args.kv.data + args.blocks[block] * args.kv.block_stride +
                              (token - block * args.kv.block_tokens) * dim;
  double sum = 0;
  for (int pair = static_cast<int>(threadIdx.x); pair < args.num_queries * args.heads;
       pair += kThreads) {
    const int query = pair / args.heads, head = pair % args.heads;
    if (token >= args.query_ends[query]) {
      continue;
    }
    const std::uint16_t* q = args.q + static_cast<std::int64_t>(pair) * dim;
    const std::uint16_t* k = keys + head / group * args.kv.head_stride;
    float dot = 0;
    for (int d = 0; d < dim; ++d) {
      dot += Element<T>::widen(q[d]) * Element<T>::widen(k[d]);
    }
    const std::int64_t row = args.query_rows[query];
    sum += exp2f(dot * args.scale_log2 - args.lse[row * args.heads + head] * kLog2E);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (const double part : sums) {
      total += part;
    }
    args.mass[token] += total;
  }
}

}  // namespace

cudaError_t add_mass(const MassArgs& args, cudaStream_t stream) {
  const int tokens = args.num_tokens - args.first_token;
  if (tokens <= 0 || args.num_queries == 0) {
    return cudaSuccess;
  }
  return kernels::cuda::launch_for_dtype(args.kv.dtype, [&]<DType T>() {
    mass_kernel<T><<<static_cast<unsigned>(tokens), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace quire::attention::cuda
