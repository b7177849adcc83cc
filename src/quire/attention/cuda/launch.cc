// Picks the kernels that compute the items of a plan, and tells the planner what it should know of
// them.
#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstdint>
#include <span>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/token_tile_map.h"
#include "quire/attention/cuda/wide_rows.h"
#include "quire/attention/device_plan.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {
namespace {

bool hopper_takes(std::int32_t head_dim, std::int32_t block_tokens, bool caps) {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return false;
  }
  return major == 9 && !caps && is_head_dim_of_hopper(head_dim) && can_make_map(block_tokens);
}
bool hopper_takes(const AttentionArgs& args) {
  return hopper_takes(args.kv.head_dim, args.kv.block_tokens, args.cap_log2 != 0);
}

// Tells whether the kernel of Hopper merges partials too. Items of few columns end at much the same
// time, and one more kernel is expensive there. A row of many columns has few partials beside its
// work.
bool hopper_merges(const AttentionArgs& args) {
  return args.work.num_many == 0 && args.work.num_few > 0 && !args.work.merges_apart;
}

cudaError_t launch_on_hopper(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few + args.work.num_many == 0) {
    return cudaSuccess;
  }
  return launch_for_format(args.kv, [&]<tensor::DType T, tensor::KVFormat F, int D>() {
    if constexpr (is_head_dim_of_hopper(D)) {
      return launch_items_hopper<T, F, D>(args, stream);
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t launch_many(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_many == 0) {
    return cudaSuccess;
  }
  return launch_for_format(args.kv, [&]<tensor::DType T, tensor::KVFormat F, int D>() {
    return launch_many_rows<T, F, D>(args, stream);
  });
}

}  // namespace

DevicePlanOptions fit_to_device(DevicePlanOptions options, std::int32_t head_dim, bool caps) {
  constexpr int kFewPerMultiprocessor = 12, kManyPerMultiprocessor = 2;  // warps; CTAs
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess) {
    return options;  // launching will tell
  }
  options.one_kernel = hopper_takes(head_dim, options.block_tokens, caps);
  options.few_workers = multiprocessors * kFewPerMultiprocessor;
  options.many_workers = multiprocessors * (options.one_kernel ? 1 : kManyPerMultiprocessor);
  return options;
}

namespace {

// Launches the items of one format.
cudaError_t launch_items(const AttentionArgs& args, bool on_hopper, cudaStream_t stream) {
  if (on_hopper) {
    return launch_on_hopper(args, stream);
  }
  if (is_wide_head_dim(args.kv.head_dim)) {
    return launch_wide_rows(args, stream);
  }
  if (const cudaError_t error = launch_few_rows(args, stream); error != cudaSuccess) {
    return error;
  }
  return launch_many(args, stream);
}

}  // namespace

cudaError_t launch_attention(const AttentionArgs& args, cudaStream_t stream) {
  const bool on_hopper = hopper_takes(args);
  const cudaError_t error = launch_items(args, on_hopper, stream);
  return error != cudaSuccess || (on_hopper && hopper_merges(args))
             ? error
             : launch_merge(args, on_hopper, stream);
}

cudaError_t launch_attention(std::span<const AttentionArgs> formats, cudaStream_t stream) {
  if (formats.size() == 1) {
    return launch_attention(formats.front(), stream);
  }
  const bool on_hopper = hopper_takes(formats.front());
  for (AttentionArgs args : formats) {
    args.work.merges_apart = true;
    if (const cudaError_t error = launch_items(args, on_hopper, stream); error != cudaSuccess) {
      return error;
    }
  }
  return launch_merge(formats.front(), on_hopper, stream);
}

}  // namespace quire::attention::cuda
