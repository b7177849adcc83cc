#include "quire/device/cuda/copy.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>

#include "quire/device/cuda/cuda_error.h"
#include "quire/result.h"

namespace quire::device::cuda {

Status copy_async(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  if (bytes == 0) {
    return {};
  }
  return to_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

Status copy_peer_async(const PeerCopy& copy, CUstream_st* stream) {
  if (copy.bytes == 0) {
    return {};
  }
  return to_status(cudaMemcpyPeerAsync(copy.to, copy.to_ordinal, copy.from, copy.from_ordinal,
                                       copy.bytes, stream),
                   "cudaMemcpyPeerAsync");
}

Status fill_async(void* data, unsigned char value, std::size_t bytes, CUstream_st* stream) {
  if (bytes == 0) {
    return {};
  }
  return to_status(cudaMemsetAsync(data, value, bytes, stream), "cudaMemsetAsync");
}

}  // namespace quire::device::cuda
