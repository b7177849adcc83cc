#include "quire/device/cuda/cuda_error.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::device::cuda {
namespace {

// Shortens "cudaFree(data)" to "cudaFree": arguments say nothing to the reader of the message.
std::string_view function_name(std::string_view call) { return call.substr(0, call.find('(')); }

}  // namespace

Status to_status(cudaError_t code, const char* call) {
  if (code == cudaSuccess) {
    return {};
  }
  (void)cudaGetLastError();  // else a later, innocent call would be blamed
  return {ErrorCode::kDevice,
          base::str_cat(function_name(call), " failed: ", cudaGetErrorString(code), " (",
                        cudaGetErrorName(code), ")")};
}

Status to_status(cudaError_t code, const char* call, std::int64_t needed_bytes) {
  if (code != cudaErrorMemoryAllocation) {
    return to_status(code, call);
  }
  (void)cudaGetLastError();
  std::size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    free_bytes = 0;
  }
  const auto free = static_cast<std::int64_t>(free_bytes);
  return Error{
      .code = ErrorCode::kOutOfBlocks,
      .message = base::str_cat(function_name(call), " cannot give ",
                               base::format_bytes(needed_bytes), ": ", base::format_bytes(free),
                               " of device memory are free; free buffers or ask for less"),
      .needed_bytes = needed_bytes,
      .free_bytes = free};
}

}  // namespace quire::device::cuda
