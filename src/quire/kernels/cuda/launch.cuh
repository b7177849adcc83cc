// Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and
// Synchronization"). A kernel's blocks may start while the kernel before it in the stream still
// runs, so that starting one costs no gap. Every kernel launched so calls await_previous() before
// it reads or writes what another kernel touches. Before Hopper these are plain launches.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace quire::kernels::cuda {

// Lets blocks of the next kernel start.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until all kernels before this one are done and their memory can be seen.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start, then waits for the kernel before. For kernels that have nothing to do
// before that one has ended.
__device__ __forceinline__ void begin_kernel() {
  allow_next();
  await_previous();
}

struct LaunchSize {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks, neighbours by x
};

// Returns whether the current device can.
inline bool starts_early() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

// Writes how many multiprocessors the current device has.
inline cudaError_t count_processors(int& processors) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess
             ? error
             : cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
}

template <class... Params, class... Args>
cudaError_t launch_early(void (*kernel)(Params...), const LaunchSize& size, cudaStream_t stream,
                         Args&&... args) {
  // Attention wants most of a multiprocessor's memory as shared memory. A kernel that wants another
  // division waits until the one before has left, so all take the same.
  cudaLaunchAttribute attributes[3] = {};
  attributes[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  attributes[2].id = cudaLaunchAttributeClusterDimension;
  attributes[2].val.clusterDim = {size.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = size.blocks;
  config.blockDim = size.threads;
  config.dynamicSmemBytes = size.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !starts_early() ? 1 : size.cluster > 1 ? 3 : 2;
  return cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
}

}  // namespace quire::kernels::cuda
