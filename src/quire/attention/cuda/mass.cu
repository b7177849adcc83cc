#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/mass.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {
namespace {

using kernels::cuda::Element;
using tensor::DType;

constexpr int kThreads = 128;
constexpr float kLog2E = 1.44269504088896f;

// Returns number d of a stored key, without its scale.
template <DType T, KVFormat F>
__device__ __forceinline__ float number_at(const std::uint16_t* key, int d) {
  if constexpr (F == KVFormat::kPlain) {
    return Element<T>::widen(key[d]);
  } else {
    return static_cast<float>(reinterpret_cast<const signed char*>(key)[d]);
  }
}

// Adds the mass of one token per block; its threads take (query, head) pairs. Sums have a fixed
// order.
template <DType T, KVFormat F>
__global__ void __launch_bounds__(kThreads) mass_kernel(const MassArgs args) {
  __shared__ double sums[kThreads];
  const int token = args.first_token + static_cast<int>(blockIdx.x);
  const int block = token / args.kv.block_tokens, dim = args.kv.head_dim;
  const int group = args.heads / args.kv_heads;
  const int slot = token - block * args.kv.block_tokens;
  const std::uint16_t* stored = args.kv.data + args.blocks[block] * args.kv.block_stride;
  const std::uint16_t* keys = stored + slot * (dim * kNumberBytes<F> / 2);
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
      dot += Element<query_dtype(T, F)>::widen(q[d]) * number_at<T, F>(k, d);
    }
    if constexpr (F != KVFormat::kPlain) {
      dot *= Element<DType::kFloat16>::widen(
          stored[head / group * args.kv.head_stride + args.kv.scale_offset + slot]);
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
  const auto blocks = static_cast<unsigned>(tokens);
  return kernels::cuda::launch_for_dtype(args.kv.dtype, [&]<DType T>() {
    if (args.kv.format == KVFormat::kInt8) {
      mass_kernel<T, KVFormat::kInt8><<<blocks, kThreads, 0, stream>>>(args);
    } else {
      mass_kernel<T, KVFormat::kPlain><<<blocks, kThreads, 0, stream>>>(args);
    }
    return cudaGetLastError();
  });
}

}  // namespace quire::attention::cuda
