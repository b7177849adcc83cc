// Errors of the CUDA runtime as Status: the call, and what the driver says of it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/result.h"

namespace quire::device::cuda {

// Returns Ok for cudaSuccess, else kDevice: "cudaStreamCreate failed: invalid argument
// (cudaErrorInvalidValue)". Also clears the error that the runtime keeps for the next call that
// asks.
[[nodiscard]] Status to_status(cudaError_t code, const char* call);

// Makes the status of a call that allocates: kOutOfBlocks with `needed_bytes` and what is free when
// memory was short.
[[nodiscard]] Status to_status(cudaError_t code, const char* call, std::int64_t needed_bytes);

}  // namespace quire::device::cuda

// Returns the error of a call of the CUDA runtime from the enclosing function, if it failed. The
// first word of the text is the function's name.
#define QUIRE_CUDA_TRY(call) QUIRE_TRY_STATUS(::quire::device::cuda::to_status((call), #call))
