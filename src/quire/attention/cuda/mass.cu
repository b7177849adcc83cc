#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/mass.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {
namespace {

using kernels::cuda::Element;
using tensor::DType;

constexpr int kThreads = 128;
constexpr float kLog2E = 1.44269504088896f;

// The key of one token, where it lies.
struct StoredKey {
  const DeviceKV& kv;
  const std::uint16_t* block;
  int slot;
};

// Returns number d of a key.
template <DType T, KVFormat F>
__device__ __forceinline__ float number_at(const StoredKey& key, int d) {
  using Half = Element<DType::kFloat16>;
  const int dim = key.kv.head_dim;
  const std::uint16_t* const scales = key.block + key.kv.scale_offset;
  if constexpr (F == KVFormat::kPlain) {
    return Element<T>::widen(key.block[key.slot * dim + d]);
  } else if constexpr (F == KVFormat::kInt4) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(key.block);
    const std::uint32_t code =
        words[kernels::cuda::int4_word(dim, key.slot, d / 8)] >> 4 * tensor::code_place(8, d % 8) &
        0xfu;
    const std::uint16_t* const of_run =
        scales + key.slot / tensor::kInt4RunTokens * Int4Scales::words(dim);
    return __fmaf_rn(static_cast<float>(code), Half::widen(of_run[Int4Scales::key(d)]),
                     Half::widen(of_run[Int4Scales::key_minimum(dim, d)]));
  } else if constexpr (F == KVFormat::kFp8) {
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(key.block);
    return tensor::e4m3_to_float(codes[key.slot * dim + d]) *
           *reinterpret_cast<const float*>(scales);
  } else {
    const auto* const codes = reinterpret_cast<const signed char*>(key.block);
    return static_cast<float>(codes[key.slot * dim + d]) * Half::widen(scales[key.slot]);
  }
}

// Returns whether a query sees a token.
__device__ __forceinline__ bool sees(const MassArgs& args, int query, int token) {
  return token < args.query_ends[query] &&
         (args.window_tokens == 0 ||
          args.stored_from + token > args.query_positions[query] - args.window_tokens);
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
  double sum = 0;
  for (int pair = static_cast<int>(threadIdx.x); pair < args.num_queries * args.heads;
       pair += kThreads) {
    const int query = pair / args.heads, head = pair % args.heads;
    if (!sees(args, query, token)) {
      continue;
    }
    const std::uint16_t* q = args.q + static_cast<std::int64_t>(pair) * dim;
    const StoredKey key = {args.kv, stored + head / group * args.kv.head_stride, slot};
    float dot = 0;
    for (int d = 0; d < dim; ++d) {
      dot += Element<query_dtype(T, F)>::widen(q[d]) * number_at<T, F>(key, d);
    }
    const std::int64_t row = args.query_rows[query];
    const float x = dot * args.scale_log2;
    const float exponent = args.cap_log2 == 0 ? x : args.cap_log2 * tanhf(x / args.cap_log2);
    sum += exp2f(exponent - args.lse[row * args.heads + head] * kLog2E);
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
  const auto launch = [&](auto* kernel) {
    kernel<<<blocks, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  };
  switch (args.kv.format) {
    case KVFormat::kPlain:
      break;
    case KVFormat::kInt8:
      return launch(mass_kernel<kAnyResult, KVFormat::kInt8>);
    case KVFormat::kFp8:
      return launch(mass_kernel<kAnyResult, KVFormat::kFp8>);
    case KVFormat::kInt4:
      return launch(mass_kernel<kAnyResult, KVFormat::kInt4>);
  }
  return kernels::cuda::launch_for_dtype(
      args.kv.dtype, [&]<DType T>() { return launch(mass_kernel<T, KVFormat::kPlain>); });
}

}  // namespace quire::attention::cuda
