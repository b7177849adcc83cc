// Copies and fills in the order of a stream. No CUDA header.
#pragma once

#include <cstddef>

#include "quire/result.h"

struct CUstream_st;

namespace quire::device::cuda {

// Copies between any two of device, pinned host and pageable host memory; the addresses say which.
// Returns before the copy is done, but after it has read the bytes of a pageable source. A copy to
// pageable memory may wait for the work before it. Ranges must not overlap. kDevice on failure.
[[nodiscard]] Status copy_async(void* to, const void* from, std::size_t bytes, CUstream_st* stream);

// A copy from the memory of one GPU to that of another (or the same). `stream` may be of either.
struct PeerCopy {
  void* to = nullptr;
  int to_ordinal = 0;
  const void* from = nullptr;
  int from_ordinal = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] Status copy_peer_async(const PeerCopy& copy, CUstream_st* stream);

// Sets `bytes` of device, pinned or managed memory to `value`.
[[nodiscard]] Status fill_async(void* data, unsigned char value, std::size_t bytes,
                                CUstream_st* stream);

}  // namespace quire::device::cuda
