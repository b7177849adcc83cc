// Reads memory as fast as the device can, for its ceiling.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace quire::kernels::cuda {

// Writes the XOR of all words, so that no read can be left out. `bytes` is a multiple of 16;
// `result` has one word.
[[nodiscard]] cudaError_t read_all(const void* data, std::size_t bytes, std::uint32_t* result,
                                   cudaStream_t stream);

}  // namespace quire::kernels::cuda
