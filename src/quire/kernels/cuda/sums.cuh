// Sums over the threads of a warp and of a block, in an order that depends on nothing.
#pragma once

#include <cuda_runtime.h>

namespace quire::kernels::cuda {

inline constexpr int kMostThreads = 1024;  // of a block

// Returns the sum over a warp to every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, lanes);
  }
  return x;
}

// Returns the sum over a block to every thread.
static __device__ float block_sum(float x) {
  __shared__ float sums[kMostThreads / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
    total += sums[warp];
  }
  return total;
}

}  // namespace quire::kernels::cuda
