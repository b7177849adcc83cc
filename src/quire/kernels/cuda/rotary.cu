#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/rotary.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 128;

__global__ void fill_kernel(const double* inverse_frequencies, double scale,
                            const std::int32_t* positions, std::int64_t count,
                            const RotaryTable table) {
  begin_kernel();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count * table.half) {
    return;
  }
  double sine = 0;
  double cosine = 0;
  sincos(positions[i / table.half] * inverse_frequencies[i % table.half], &sine, &cosine);
  table.cos[i] = static_cast<float>(cosine * scale);
  table.sin[i] = static_cast<float>(sine * scale);
}

// Returns element `dim` of a head rotated by row `row`. Products are rounded before they are added,
// as on the CPU.
__device__ __forceinline__ float rotated(const float* head, int dim, const RotaryTable& table,
                                         std::int64_t row) {
  const int half = table.half;
  if (dim >= 2 * half) {
    return head[dim];
  }
  const int pair = dim < half ? dim : dim - half;
  const float cosine = table.cos[row * half + pair], sine = table.sin[row * half + pair];
  const float low = head[pair], high = head[pair + half];
  return dim < half ? __fsub_rn(__fmul_rn(low, cosine), __fmul_rn(high, sine))
                    : __fadd_rn(__fmul_rn(high, cosine), __fmul_rn(low, sine));
}

// Appends one token's KV head per block of threads.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    append_kernel(const QKVRows from, const RotaryTable table, const tensor::KVSlot* slots,
                  const KVLayer to) {
  begin_kernel();
  const std::int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const tensor::KVSlot slot = slots[token];
  if (slot.block < 0) {
    return;
  }
  const float* k = from.qkv + token * from.stride + std::int64_t{from.heads + head} * from.head_dim;
  const float* v = k + std::int64_t{from.kv_heads} * from.head_dim;
  Half* out =
      to.data + head * to.head_stride + slot.block * to.block_stride + slot.offset * to.stored_dim;
  for (int dim = static_cast<int>(threadIdx.x); dim < to.stored_dim; dim += kThreads) {
    const bool real = dim < from.head_dim;
    out[dim] = Element<T>::round(real ? rotated(k, dim, table, token) : 0.0f);
    out[to.v_offset + dim] = Element<T>::round(real ? v[dim] : 0.0f);
  }
}

// Rotates one head of a query per block of threads.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(const QKVRows from, const RotaryTable table, const QueryRows queries) {
  begin_kernel();
  const std::int64_t query = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const float* q = from.qkv + queries.rows[query] * from.stride + head * from.head_dim;
  Half* to = queries.out + (query * from.heads + head) * queries.stored_dim;
  for (int dim = static_cast<int>(threadIdx.x); dim < queries.stored_dim; dim += kThreads) {
    to[dim] = Element<T>::round(dim < from.head_dim ? rotated(q, dim, table, query) : 0.0f);
  }
}

}  // namespace

cudaError_t fill_rotary(const double* inverse_frequencies, double scale,
                        const std::int32_t* positions, std::int64_t count, const RotaryTable& table,
                        cudaStream_t stream) {
  const std::int64_t all = count * table.half;
  if (all == 0) {
    return cudaSuccess;
  }
  const auto blocks = static_cast<unsigned>((all + kThreads - 1) / kThreads);
  return launch_early(fill_kernel, {blocks, kThreads}, stream, inverse_frequencies, scale,
                      positions, count, table);
}

cudaError_t append_kv(const QKVRows& from, const RotaryTable& table, const tensor::KVSlot* slots,
                      std::int64_t count, const KVLayer& to, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  const dim3 blocks(static_cast<unsigned>(count), static_cast<unsigned>(from.kv_heads));
  return launch_for_dtype(to.dtype, [&]<DType T>() {
    return launch_early(append_kernel<T>, {blocks, kThreads}, stream, from, table, slots, to);
  });
}

cudaError_t rotate_queries(const QKVRows& from, const RotaryTable& table, const QueryRows& to,
                           cudaStream_t stream) {
  if (to.count == 0) {
    return cudaSuccess;
  }
  const dim3 grid(static_cast<unsigned>(to.count), static_cast<unsigned>(from.heads));
  return launch_for_dtype(to.dtype, [&]<DType T>() {
    return launch_early(queries_kernel<T>, {grid, kThreads}, stream, from, table, to);
  });
}

}  // namespace quire::kernels::cuda
