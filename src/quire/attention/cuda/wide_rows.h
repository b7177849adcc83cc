// Attention of heads beyond 256 numbers, few and many columns alike.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {

// Stored head sizes with an instance, beside those of kHeadDims.
inline constexpr int kWideHeadDims[] = {512, 576};
[[nodiscard]] constexpr bool is_wide_head_dim(std::int32_t head_dim) {
  return head_dim == kWideHeadDims[0] || head_dim == kWideHeadDims[1];
}

// Calls launch.operator()<T, D>() of the instance for its dtype and stored head size. Returns
// cudaErrorInvalidValue when there is none.
template <class Launch>
[[nodiscard]] cudaError_t launch_for_wide(const DeviceKV& kv, const Launch& launch) {
  const auto launch_type = [&]<tensor::DType T>() {
    return kv.head_dim == kWideHeadDims[0]   ? launch.template operator()<T, kWideHeadDims[0]>()
           : kv.head_dim == kWideHeadDims[1] ? launch.template operator()<T, kWideHeadDims[1]>()
                                             : cudaErrorInvalidValue;
  };
  return kv.dtype == tensor::DType::kFloat16
             ? launch_type.template operator()<tensor::DType::kFloat16>()
         : kv.dtype == tensor::DType::kBFloat16
             ? launch_type.template operator()<tensor::DType::kBFloat16>()
             : cudaErrorInvalidValue;
}

// Launches all items, over plain KV. Returns cudaErrorInvalidValue for codes.
[[nodiscard]] cudaError_t launch_wide_rows(const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
