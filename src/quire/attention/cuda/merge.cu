// Merges the parts of each row that has several and rounds the result. Parts are dealt to kGroups
// groups like cards; each group is merged in order, then the groups are. Two kernels do that, one
// with a warp for each group where there are few rows, one with a warp for all; the bits are the
// same.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/launch.cuh"

namespace quire::attention::cuda {

using kernels::cuda::begin_kernel;
using kernels::cuda::launch_early;

namespace {

constexpr int kGroups = 8;
constexpr int kHeads = 4;     // of one row, in a block of the second kernel: a warp each
constexpr int kMostDims = 8;  // of a lane: head size 256 / 32
constexpr int kMostDim = 256;

// Values of one head, spread over a warp: lane l holds dimensions l, l + 32, ...
struct Sum {
  float value[kMostDims] = {};
  float largest = -INFINITY, total = 0;

  // Adds what a warp holds in the same way, relative to 2^stats.x, with stats.y as its sum.
  __device__ void add(float2 stats, const float (&other)[kMostDims]) {
    const float now = fmaxf(largest, stats.x);
    const float keep = exp2f(largest - now), take = exp2f(stats.x - now);
    largest = now;
    total = __fmaf_rn(total, keep, __fmul_rn(stats.y, take));
#pragma unroll
    for (int d = 0; d < kMostDims; ++d) {
      value[d] = __fmaf_rn(value[d], keep, __fmul_rn(other[d], take));
    }
  }

  // Parts group, group + kGroups, ... of a row's head; kAtOnce of them are fetched at a time.
  template <int kAtOnce>
  __device__ void add_group(const AttentionArgs& args, DevicePlan::Parts parts, int head, int group,
                            int lane) {
    for (int first = group; first < parts.count; first += kGroups * kAtOnce) {
      float2 stats[kAtOnce];
      float values[kAtOnce][kMostDims];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int part = min(first + i * kGroups, parts.count - 1);
        const std::int64_t at = std::int64_t{parts.first + part} * args.heads + head;
        stats[i] = args.work.part_stats[at];
        const float* from = args.work.part_values + at * args.kv.head_dim;
#pragma unroll
        for (int d = 0; d < kMostDims; ++d) {
          const int dim = d * 32 + lane;
          values[i][d] = dim < args.kv.head_dim ? from[dim] : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kGroups < parts.count) {
          add(stats[i], values[i]);
        }
      }
    }
  }

  __device__ void write(const AttentionArgs& args, int row, int head, int lane) const {
    const std::int64_t at = std::int64_t{row} * args.heads + head;
    auto* out = reinterpret_cast<__nv_bfloat16*>(args.out) + at * args.head_dim;
#pragma unroll
    for (int d = 0; d < kMostDims; ++d) {
      const int dim = d * 32 + lane;
      if (dim < args.head_dim) {
        out[dim] = __float2bfloat16_rn(total > 0 ? value[d] / total : 0.0f);
      }
    }
    if (args.lse != nullptr && lane == 0) {
      constexpr float kLn2 = 0.693147180559945f;
      args.lse[at] = total > 0 ? (largest + log2f(total)) * kLn2 : -INFINITY;
    }
  }
};

// A block to a head of a row.
__global__ void __launch_bounds__(kGroups * 32) merge_wide(const AttentionArgs args) {
  __shared__ float values[kGroups][kMostDim];
  __shared__ float2 stats[kGroups];
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int group = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const DevicePlan::Parts parts = args.work.parts[row];
  begin_kernel();
  if (parts.first < 0) {
    return;
  }
  Sum sum;
  sum.add_group<4>(args, parts, head, group, lane);
#pragma unroll
  for (int d = 0; d < kMostDims; ++d) {
    values[group][d * 32 + lane] = sum.value[d];
  }
  if (lane == 0) {
    stats[group] = {sum.largest, sum.total};
  }
  __syncthreads();
  if (group > 0) {
    return;
  }
  Sum all;
  for (int i = 0; i < min(kGroups, parts.count); ++i) {
    float group_values[kMostDims];
#pragma unroll
    for (int d = 0; d < kMostDims; ++d) {
      group_values[d] = values[i][d * 32 + lane];
    }
    all.add(stats[i], group_values);
  }
  all.write(args, row, head, lane);
}

// A warp to a head of a row.
__global__ void __launch_bounds__(kHeads * 32) merge_narrow(const AttentionArgs args) {
  const int row = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.y) * kHeads + warp;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (head >= args.heads) {
    begin_kernel();
    return;
  }
  const DevicePlan::Parts parts = args.work.parts[row];
  begin_kernel();
  if (parts.first < 0) {
    return;
  }
  Sum all;
  for (int i = 0; i < min(kGroups, parts.count); ++i) {
    Sum group;
    group.add_group<1>(args, parts, head, i, lane);  // mostly there is one
    all.add({group.largest, group.total}, group.value);
  }
  all.write(args, row, head, lane);
}

}  // namespace

cudaError_t launch_merge(const AttentionArgs& args, cudaStream_t stream) {
  constexpr int kFewBlocks = 4096;
  if (!args.work.merges) {
    return cudaSuccess;
  }
  const auto rows = static_cast<unsigned>(args.work.num_rows);
  const auto heads = static_cast<unsigned>(args.heads);
  if (rows * heads <= kFewBlocks) {
    return launch_early(merge_wide, {dim3(rows, heads), kGroups * 32}, stream, args);
  }
  const dim3 blocks(rows, (heads + kHeads - 1) / kHeads);
  return launch_early(merge_narrow, {blocks, kHeads * 32}, stream, args);
}

}  // namespace quire::attention::cuda
