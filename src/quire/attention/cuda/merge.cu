// Merges the parts of each row, in order, and rounds the result.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"

namespace quire::attention::cuda {
namespace {

constexpr int kHeads = 4;     // of one row, in a block: a warp each
constexpr int kMostDims = 8;  // of a lane: head size 256 / 32

__global__ void __launch_bounds__(kHeads * 32) merge(const AttentionArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kHeads + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (head >= args.heads) {
    return;
  }
  const DevicePlan::Parts parts = args.work.parts[row];
  float value[kMostDims] = {};
  float largest = -INFINITY, sum = 0;
  for (int i = 0; i < parts.count; ++i) {
    const std::int64_t at = std::int64_t{parts.first + i} * args.heads + head;
    const float2 stats = args.work.part_stats[at];
    const float now = fmaxf(largest, stats.x);
    const float keep = exp2f(largest - now), add = exp2f(stats.x - now);
    largest = now;
    sum = sum * keep + stats.y * add;
    const float* from = args.work.part_values + at * args.kv.head_dim;
#pragma unroll
    for (int d = 0; d < kMostDims; ++d) {
      const int dim = d * 32 + lane;
      if (dim < args.kv.head_dim) {
        value[d] = value[d] * keep + from[dim] * add;
      }
    }
  }
  const std::int64_t at = std::int64_t{row} * args.heads + head;
  auto* out = reinterpret_cast<__nv_bfloat16*>(args.out) + at * args.head_dim;
#pragma unroll
  for (int d = 0; d < kMostDims; ++d) {
    const int dim = d * 32 + lane;
    if (dim < args.head_dim) {
      out[dim] = __float2bfloat16_rn(sum > 0 ? value[d] / sum : 0.0f);
    }
  }
  if (args.lse != nullptr && lane == 0) {
    constexpr float kLn2 = 0.693147180559945f;
    args.lse[at] = sum > 0 ? (largest + log2f(sum)) * kLn2 : -INFINITY;
  }
}

}  // namespace

cudaError_t launch_merge(const AttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(args.work.num_rows, (args.heads + kHeads - 1) / kHeads);
  merge<<<grid, kHeads * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace quire::attention::cuda
