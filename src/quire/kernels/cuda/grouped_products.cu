// Products of groups of rows with 16-bit weights, by the tensor core's small product. Weights go
// from memory to the registers that multiply them. The warps of a block have a slice of the inputs
// each, and their sums are added in order.
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/row_images.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kWarps = 4;  // slices of the inputs
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kColumns = 8;  // rows of activations of a small product
constexpr int kFewBlocks = 1, kManyBlocks = 4;
constexpr int kFewRows = kFewBlocks * kColumns, kManyRows = kManyBlocks * kColumns;

// kTiles of outputs share a look at kBlocks of kColumns rows. Lane (g, t) has outputs g and g + 8
// of a tile, and row g of a block. It has inputs 8t to 8t + 7 of each 32, of weights and rows
// alike.
template <DType T, int kTiles, int kBlocks>
struct GroupedRows {
  static constexpr int kOutputs = kTiles * kTileOutputs;
  using Sums = float[kTiles][kBlocks][4];

  const uint4* weights[kTiles][2];
  const uint4* rows[kBlocks];

  // Outputs and rows behind the last one are read as that one, and not written.
  __device__ GroupedRows(const GroupedProduct& product, const ExpertRows& group, int lane) {
    const std::int64_t inputs = product.weights.inputs, outputs = product.weights.outputs;
    const auto* const matrix = reinterpret_cast<const Half*>(product.weights.data) +
                               std::int64_t{group.expert} * outputs * inputs;
    const auto part_of = [&](const Half* row) {
      return reinterpret_cast<const uint4*>(row) + lane % 4;
    };
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t output =
            std::int64_t{blockIdx.x} * kOutputs + tile * kTileOutputs + half * kColumns + lane / 4;
        weights[tile][half] = part_of(matrix + min(output, outputs - 1) * inputs);
      }
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int place = group.first + min(block * kColumns + lane / 4, group.count - 1);
      const std::int64_t row = product.row_of == nullptr ? place : product.row_of[place];
      rows[block] = part_of(product.x + row * inputs);
    }
  }

  // Adds the products of 32 inputs; those of a lane that are behind the last input are zeros.
  __device__ __forceinline__ void add(int step, bool is_there, Sums& sums) const {
    constexpr int kVectors = kGroupInputs / kLaneInputs;
    const uint4 none = {};
    uint4 x[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      x[block] = is_there ? rows[block][step * kVectors] : none;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 low = is_there ? __ldg(weights[tile][0] + step * kVectors) : none;
      const uint4 high = is_there ? __ldg(weights[tile][1] + step * kVectors) : none;
      const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        CodePairs<T>::multiply(sums[tile][block], first, x[block].x, x[block].y);
        CodePairs<T>::multiply(sums[tile][block], second, x[block].z, x[block].w);
      }
    }
  }

  // Adds the slices in order and writes the outputs of the block.
  __device__ static void finish(const GroupedProduct& product, const ExpertRows& group,
                                const Sums& sums) {
    __shared__ float4 all[kWarps][kTiles][kBlocks][kWarpLanes];
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float(&mine)[4] = sums[tile][block];
        all[warp][tile][block][lane] = {mine[0], mine[1], mine[2], mine[3]};
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kOutputs * group.count; i += kThreads) {
      const int output = i % kOutputs, row = i / kOutputs;
      const int tile = output / kTileOutputs, in_tile = output % kTileOutputs;
      const int from = in_tile % 8 * 4 + row % kColumns / 2;
      const int place = in_tile / 8 * 2 + row % 2;
      float sum = 0;
#pragma unroll
      for (const auto& slice : all) {
        sum = __fadd_rn(sum,
                        reinterpret_cast<const float*>(&slice[tile][row / kColumns][from])[place]);
      }
      const std::int64_t to = std::int64_t{blockIdx.x} * kOutputs + output;
      if (to < product.weights.outputs) {
        product.out[std::int64_t{group.first + row} * product.weights.outputs + to] = sum;
      }
    }
  }
};

template <DType T, int kTiles, int kBlocks>
__global__ void __launch_bounds__(kThreads) multiply_groups_kernel(const GroupedProduct product) {
  begin_kernel();
  const ExpertRows group = product.groups[blockIdx.y];
  if (group.count == 0) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const GroupedRows<T, kTiles, kBlocks> operands(product, group, lane);
  const auto inputs = static_cast<int>(product.weights.inputs);
  const int steps = (inputs + kGroupInputs - 1) / kGroupInputs;
  const int end = steps * (warp + 1) / kWarps;
  float sums[kTiles][kBlocks][4] = {};
#pragma unroll 4
  for (int step = steps * warp / kWarps; step < end; ++step) {
    operands.add(step, step * kGroupInputs + lane % 4 * kLaneInputs < inputs, sums);
  }
  GroupedRows<T, kTiles, kBlocks>::finish(product, group, sums);
}

template <int kTiles, int kBlocks>
cudaError_t launch_groups(const GroupedProduct& product, cudaStream_t stream) {
  constexpr std::int64_t kOutputs = std::int64_t{kTiles} * kTileOutputs;
  const dim3 blocks(static_cast<unsigned>((product.weights.outputs + kOutputs - 1) / kOutputs),
                    static_cast<unsigned>(product.num_groups));
  return launch_for_dtype(product.dtype, [&]<DType T>() {
    return launch_early(multiply_groups_kernel<T, kTiles, kBlocks>, {blocks, kThreads}, stream,
                        product);
  });
}

}  // namespace

// Three looks of 16 rows at codes cost what one of 128 rows does.
int grouped_block_rows(std::int64_t places, std::int32_t experts, GroupedWeights weights) {
  constexpr int kCodedRows = 16;
  if (places <= std::int64_t{kFewRows} / 2 * experts) {
    return kFewRows;
  }
  if (weights == GroupedWeights::kFloats) {
    return kManyRows;
  }
  return weights == GroupedWeights::kWideCodes && places >= std::int64_t{3} * kCodedRows * experts
             ? kGroupedWideRows
             : kCodedRows;
}

cudaError_t multiply_groups(const GroupedProduct& product, cudaStream_t stream) {
  if (product.num_groups == 0) {
    return cudaSuccess;
  }
  if (product.weights.format) {
    return product.block_rows == kGroupedWideRows ? multiply_wide_groups(product, stream)
                                                  : multiply_coded_groups(product, stream);
  }
  return product.block_rows <= kFewRows ? launch_groups<1, kFewBlocks>(product, stream)
                                        : launch_groups<2, kManyBlocks>(product, stream);
}

}  // namespace quire::kernels::cuda
