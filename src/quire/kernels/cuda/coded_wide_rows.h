// Kernels that coded_wide_rows.cu launches behind the one that arranges rows.
#pragma once

#include <cuda_runtime_api.h>

#include "quire/kernels/cuda/row_images.h"

namespace quire::kernels::cuda {

// Launches for bf16, and for fp16.
[[nodiscard]] cudaError_t launch_wide_bf16(const WideProduct& wide, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_wide_fp16(const WideProduct& wide, cudaStream_t stream);

}  // namespace quire::kernels::cuda
