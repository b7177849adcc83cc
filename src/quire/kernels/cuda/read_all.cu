#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/read_all.h"

namespace quire::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 132 * 4;
constexpr int kAtOnce = 8;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* data, std::size_t count, std::uint32_t* result) {
  const std::size_t all = std::size_t{gridDim.x} * kThreads;
  std::uint32_t sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += kAtOnce * all) {
    uint4 words[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      words[j] = i + j * all < count ? __ldcs(data + i + j * all) : uint4{};
    }
#pragma unroll
    for (const uint4& word : words) {
      sum ^= word.x ^ word.y ^ word.z ^ word.w;
    }
  }
  if (sum == 0x9e3779b9u) {  // never in practice, but the compiler does not know
    atomicXor(result, sum);
  }
}

}  // namespace

cudaError_t read_all(const void* data, std::size_t bytes, std::uint32_t* result,
                     cudaStream_t stream) {
  read_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16,
                                                result);
  return cudaGetLastError();
}

}  // namespace quire::kernels::cuda
