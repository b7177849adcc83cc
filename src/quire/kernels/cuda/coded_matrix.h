// A matrix of quantised weights on the device, in the order of device_codes.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/device_codes.h"

namespace quire::kernels::cuda {

// A matrix [outputs, inputs] of device_code_bytes(). Borrows its bytes, which are 16-byte aligned.
struct CodedWeights {
  CodeFormat format = CodeFormat::kQ8;
  const std::byte* data = nullptr;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

}  // namespace quire::kernels::cuda
