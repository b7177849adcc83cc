// Merges the partials of each row that has several, and writes zeros where a row sees nothing.
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/merge.cuh"
#include "quire/attention/cuda/wide_rows.h"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {
namespace {

constexpr int kHeads = 4;  // heads of one row in a block of threads: a warp each

// Blocks on a multiprocessor, by few enough registers. Each round costs as much as the first. But
// blocks fill the multiprocessors that items leave first. So more on each are slower where there is
// no more than one round of them.
template <int D>
constexpr int kBlocks = D <= 128   ? 6
                        : D <= 256 ? 4
                                   : 2;
constexpr int kBlocksOfMany = 16;
constexpr unsigned kManyBlocks = 1536;  // nearly two rounds of kBlocks on 132 multiprocessors

template <tensor::DType T, int D, bool kHalves, bool kMany>
__global__ void __launch_bounds__(kHeads * 32, kMany ? kBlocksOfMany : kBlocks<D>)
    merge(const AttentionArgs args) {
  const int row = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.y) * kHeads + warp;
  const DevicePlan::PartialResults partials = args.work.partials[row];
  kernels::cuda::begin_kernel();
  if (partials.first >= 0 && head < args.heads) {
    float room[kMany ? D / 32 : D / 16][4];
    merge_partials<T, D, kHalves>(args, partials, row, head, room);
  }
}

}  // namespace

cudaError_t launch_merge(const AttentionArgs& args, bool of_hopper, cudaStream_t stream) {
  if (!args.work.merges) {
    return cudaSuccess;
  }
  const dim3 blocks(static_cast<unsigned>(args.work.num_rows),
                    static_cast<unsigned>((args.heads + kHeads - 1) / kHeads));
  const kernels::cuda::LaunchSize size = {blocks, kHeads * 32};
  if (is_wide_head_dim(args.kv.head_dim)) {
    return launch_for_wide(args.kv, [&]<tensor::DType T, int D>() {
      return kernels::cuda::launch_early(merge<T, D, false, false>, size, stream, args);
    });
  }
  return launch_for(args.kv, [&]<tensor::DType T, int D>() {
    if constexpr (is_head_dim_of_hopper(D)) {
      if (of_hopper) {
        return kernels::cuda::launch_early(
            blocks.x * blocks.y > kManyBlocks ? merge<T, D, true, true> : merge<T, D, true, false>,
            size, stream, args);
      }
    }
    return kernels::cuda::launch_early(merge<T, D, false, false>, size, stream, args);
  });
}

}  // namespace quire::attention::cuda
