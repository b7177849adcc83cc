// The kernels behind attention/cuda/run.h. `args` live on the host; what they point to on the
// device.
#pragma once

#include <cuda_runtime_api.h>

#include "quire/attention/cuda/args.h"

namespace quire::attention::cuda {

// Stored head sizes with an instance.
inline constexpr int kHeadDims[] = {32, 64, 96, 128, 256};

[[nodiscard]] cudaError_t launch_few_rows(const AttentionArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_many_rows(const AttentionArgs& args, cudaStream_t stream);
// Parts to rows of `out` and `lse`, in order.
[[nodiscard]] cudaError_t launch_merge(const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
