// The kernels behind attention/cuda/run.h. `args` live on the host; what they point to on the
// device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "quire/attention/cuda/args.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

// Stored head sizes with an instance.
inline constexpr int kHeadDims[] = {32, 64, 96, 128, 256};

// Says whether items_hopper.cuh has instances for a stored head size.
[[nodiscard]] constexpr bool is_head_dim_of_hopper(std::int32_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

// Calls launch.operator()<T, D>() of the instance for its dtype and stored head size, or <T, F,
// D>() of its format too. Returns cudaErrorInvalidValue when there is none.
template <tensor::DType T, class Launch>
[[nodiscard]] cudaError_t launch_for_head(std::int32_t head_dim, const Launch& launch) {
  switch (head_dim) {
    case 32:
      return launch.template operator()<T, 32>();
    case 64:
      return launch.template operator()<T, 64>();
    case 96:
      return launch.template operator()<T, 96>();
    case 128:
      return launch.template operator()<T, 128>();
    case 256:
      return launch.template operator()<T, 256>();
    default:
      return cudaErrorInvalidValue;
  }
}
template <class Launch>
[[nodiscard]] cudaError_t launch_for(const DeviceKV& kv, const Launch& launch) {
  if (kv.dtype == tensor::DType::kFloat16) {
    return launch_for_head<tensor::DType::kFloat16>(kv.head_dim, launch);
  }
  return kv.dtype == tensor::DType::kBFloat16
             ? launch_for_head<tensor::DType::kBFloat16>(kv.head_dim, launch)
             : cudaErrorInvalidValue;
}
template <class Launch>
[[nodiscard]] cudaError_t launch_for_format(const DeviceKV& kv, const Launch& launch) {
  const auto over_codes = [&]<tensor::KVFormat F>() {
    return launch_for_head<kAnyResult>(kv.head_dim, [&]<tensor::DType T, int D>() {
      return launch.template operator()<T, F, D>();
    });
  };
  switch (kv.format) {
    case tensor::KVFormat::kPlain:
      break;
    case tensor::KVFormat::kInt8:
      return over_codes.template operator()<tensor::KVFormat::kInt8>();
    case tensor::KVFormat::kFp8:
      return over_codes.template operator()<tensor::KVFormat::kFp8>();
    case tensor::KVFormat::kInt4:
      return over_codes.template operator()<tensor::KVFormat::kInt4>();
  }
  return launch_for(kv, [&]<tensor::DType T, int D>() {
    return launch.template operator()<T, tensor::KVFormat::kPlain, D>();
  });
}

// Returns `options` with what the planner should know of the current device and its kernels for a
// stored head size. `caps` says whether AttentionArgs::cap_log2 is set. block_tokens is set
// already.
[[nodiscard]] DevicePlanOptions fit_to_device(DevicePlanOptions options, std::int32_t head_dim,
                                              bool caps = false);
// Computes every row of `out` and `lse`, also those that see nothing.
[[nodiscard]] cudaError_t launch_attention(const AttentionArgs& args, cudaStream_t stream);
// Computes so where rows see KV in several formats. `formats` have the items of each, all the same
// rows, partials and places of results (join_device_plans).
[[nodiscard]] cudaError_t launch_attention(std::span<const AttentionArgs> formats,
                                           cudaStream_t stream);

// Launches the items of few columns. launch_attention() launches those of few and of many columns.
// On Hopper one kernel computes both at once where stored head size and block size suit its copy
// engine, unless scores are capped. Items write partials, and rows that have but one partial. Then
// partials become rows, in order, unless the kernel of Hopper has done that too.
[[nodiscard]] cudaError_t launch_few_rows(const AttentionArgs& args, cudaStream_t stream);
// Launches the instance for a dtype of results (over codes: kAnyResult), a format of KV and a
// stored head size. There must be items. many_rows_*.cu and items_hopper_*.cu share the instances
// out, since these compile for long.
template <tensor::DType T, tensor::KVFormat F, int D>
[[nodiscard]] cudaError_t launch_many_rows(const AttentionArgs& args, cudaStream_t stream);
template <tensor::DType T, tensor::KVFormat F, int D>
[[nodiscard]] cudaError_t launch_items_hopper(const AttentionArgs& args, cudaStream_t stream);
// Turns partials into rows. With `of_hopper` their values are fp16, as launch_items_hopper() writes
// them.
[[nodiscard]] cudaError_t launch_merge(const AttentionArgs& args, bool of_hopper,
                                       cudaStream_t stream);

}  // namespace quire::attention::cuda
