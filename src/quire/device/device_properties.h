// Properties of a GPU that the planner and the kernels ask for, and the refusal of some GPUs. No
// CUDA header.
#pragma once

#include <cstdint>
#include <string>

#include "quire/result.h"

namespace quire::device {

struct DeviceProperties {
  int ordinal = 0;
  std::string name = {};
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t total_bytes = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t shared_bytes_per_block = 0;  // the most that a kernel can ask for
  std::int64_t shared_bytes_per_multiprocessor = 0;
};

// Returns kDevice, with the name of the GPU, for compute capability below 8.0: no bf16 arithmetic
// there.
[[nodiscard]] Status check_supported(const DeviceProperties& properties);

// Returns the name that the identity of KV gives to the kernels of a GPU: "cuda-9.0-4", where 4 is
// the version of their arithmetic. "cuda-9.0-4-fast" names those whose bits depend on the batch.
[[nodiscard]] std::string kernels_name(const DeviceProperties& properties, bool deterministic);

}  // namespace quire::device
