// Measures the most that an accelerator can do: the floors of benchmarks, in the same run.
#pragma once

#include "quire/device/accelerator.h"
#include "quire/result.h"

namespace quire::kernels {

struct DeviceCeilings {
  double read_bytes_per_second = 0;  // read bandwidth of its memory
  double flops_per_second = 0;       // bf16 products of near normal numbers, 8192 x 8192 x 8192
  double e4m3_flops_per_second = 0;  // such products of 8-bit floats; 0: the device has none
  double to_device_bytes_per_second = 0;  // from pinned host memory
};

// Measures for about a second. Returns kDevice without CUDA.
[[nodiscard]] Result<DeviceCeilings> measure_device_ceilings(device::Accelerator& accelerator);

}  // namespace quire::kernels
