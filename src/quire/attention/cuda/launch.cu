// Which kernels compute the items of a plan, and what the planner should know of them.
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"

namespace quire::attention::cuda {

DevicePlanOptions fit_to_device(DevicePlanOptions options, std::int32_t head_dim) {
  constexpr int kFewPerMultiprocessor = 12, kManyPerMultiprocessor = 2;  // warps; CTAs
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess) {
    return options;  // launching will tell
  }
  options.one_kernel = hopper_takes(head_dim, options.block_tokens);
  options.few_workers = multiprocessors * kFewPerMultiprocessor;
  options.many_workers = multiprocessors * (options.one_kernel ? 1 : kManyPerMultiprocessor);
  return options;
}

cudaError_t launch_attention(const AttentionArgs& args, cudaStream_t stream) {
  if (hopper_takes(args.kv.head_dim, args.kv.block_tokens)) {
    const cudaError_t error = launch_items_hopper(args, stream);
    return error != cudaSuccess || hopper_merges(args) ? error : launch_merge(args, true, stream);
  }
  if (const cudaError_t error = launch_few_rows(args, stream); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = launch_many_rows(args, stream); error != cudaSuccess) {
    return error;
  }
  return launch_merge(args, false, stream);
}

}  // namespace quire::attention::cuda
