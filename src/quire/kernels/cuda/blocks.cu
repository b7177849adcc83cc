#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/blocks.h"

namespace quire::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::int64_t head_block_elements(const KVPool& pool) {
  return std::int64_t{2} * pool.slots * pool.head_dim;
}

// Copies K, then V, of one token of a head per warp.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const KVPool pool, const Slot* from, const Slot* to, std::int32_t count) {
  const int token = static_cast<int>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (token >= count) {
    return;
  }
  const std::int64_t half = std::int64_t{pool.slots} * pool.head_dim;
  const std::int64_t head = std::int64_t{blockIdx.y} * pool.num_blocks * 2 * half;
  const auto at = [&](Slot slot) {
    return head + slot / pool.slots * 2 * half + slot % pool.slots * pool.head_dim;
  };
  const std::int64_t source = at(from[token]), target = at(to[token]);
  for (int d = static_cast<int>(threadIdx.x) % 32; d < pool.head_dim; d += 32) {
    pool.data[target + d] = pool.data[source + d];
    pool.data[target + half + d] = pool.data[source + half + d];
  }
}

// Returns where element i of a head block on the host lies in one on the device.
__device__ __forceinline__ int device_element(const KVPool& pool, int i) {
  const int half = pool.slots * pool.head_dim;
  if (i < half) {  // K [dim / 2][slot][2]
    const int slot = i / 2 % pool.slots, dim = i / 2 / pool.slots * 2 + i % 2;
    return slot * pool.head_dim + dim;
  }
  const int j = i - half;  // V [slot / 2][dim][2]
  const int dim = j / 2 % pool.head_dim, slot = j / 2 / pool.head_dim * 2 + j % 2;
  return half + slot * pool.head_dim + dim;
}

// Converts one head block per block of threads: from the pool with `kPack`, else to it.
template <bool kPack>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const KVPool pool, const HeadBlocks which, Half* host_layout) {
  const int elements = static_cast<int>(head_block_elements(pool));
  const std::int64_t head = which.first_head + static_cast<std::int64_t>(blockIdx.y);
  Half* device = pool.data + (head * pool.num_blocks + which.blocks[blockIdx.x]) * elements;
  Half* host = host_layout + (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * elements;
  for (int i = static_cast<int>(threadIdx.x); i < elements; i += kThreads) {
    if (kPack) {
      host[i] = device[device_element(pool, i)];
    } else {
      device[device_element(pool, i)] = host[i];
    }
  }
}

dim3 grid(std::int32_t x, std::int32_t y) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y)};
}

}  // namespace

cudaError_t copy_slots(const KVPool& pool, const Slot* from, const Slot* to, std::int32_t count,
                       cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  constexpr int kWarps = kThreads / 32;
  copy_kernel<<<grid((count + kWarps - 1) / kWarps, pool.heads), kThreads, 0, stream>>>(pool, from,
                                                                                        to, count);
  return cudaGetLastError();
}

cudaError_t pack_blocks(const KVPool& pool, const HeadBlocks& which, Half* host_layout,
                        cudaStream_t stream) {
  if (which.count == 0) {
    return cudaSuccess;
  }
  convert_kernel<true>
      <<<grid(which.count, which.heads), kThreads, 0, stream>>>(pool, which, host_layout);
  return cudaGetLastError();
}

cudaError_t unpack_blocks(const KVPool& pool, const HeadBlocks& which, const Half* host_layout,
                          cudaStream_t stream) {
  if (which.count == 0) {
    return cudaSuccess;
  }
  convert_kernel<false><<<grid(which.count, which.heads), kThreads, 0, stream>>>(
      pool, which, const_cast<Half*>(host_layout));
  return cudaGetLastError();
}

}  // namespace quire::kernels::cuda
