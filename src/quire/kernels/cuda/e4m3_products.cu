#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/e4m3_few_rows.cuh"
#include "quire/kernels/cuda/e4m3_many_rows.cuh"
#include "quire/kernels/cuda/e4m3_products.h"
#include "quire/kernels/cuda/e4m3_rows.h"
#include "quire/kernels/cuda/e4m3_warpgroup.cuh"
#include "quire/kernels/cuda/e4m3_wide_rows.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"

namespace quire::kernels::cuda {
namespace {

constexpr int kMostBytes = 227 * 1024;  // of shared memory

// Kernels of products, by the number of rows of a block.
struct Choice {
  enum class Kernel : std::uint8_t { kFew, kWide, kMany };
  Kernel kernel = Kernel::kFew;
  int block_rows = 0;
};

// Returns whether tiles of so many rows leave no more than a quarter of the multiprocessors idle.
bool fills(std::int64_t rows, int tile_rows, std::int64_t outputs, int processors) {
  constexpr int kOutputs = ManyE4m3Rows<1>::kOutputs;
  const std::int64_t tiles =
      (rows + tile_rows - 1) / tile_rows * ((outputs + kOutputs - 1) / kOutputs);
  return tiles * 4 >= std::int64_t{processors} * 3;
}

Choice choose(std::int64_t rows, const CodedWeights& weights, int processors) {
  using Kernel = Choice::Kernel;
  const CodedRows two{.inputs = weights.inputs, .block_rows = 2, .sliced = true};
  if (rows <= 2 && FewE4m3Rows<2>::bytes(two.steps()) <= kMostBytes) {
    return {Kernel::kFew, 2};
  }
  if (rows <= 16) {
    return {Kernel::kFew, rows <= 8 ? 8 : 16};
  }
  if (rows > 32 && units_of(weights.inputs) >= kCodedSlices && weights.outputs % 4 == 0) {
    for (const int tile_rows : {256, 128}) {
      if ((rows > 128 || tile_rows == 128) && fills(rows, tile_rows, weights.outputs, processors)) {
        return {Kernel::kMany, tile_rows};
      }
    }
  }
  return {Kernel::kWide, rows <= 32 ? 32 : rows <= 64 ? 64 : 128};
}

cudaError_t allow_bytes(const void* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int kRows>
cudaError_t launch_few(const E4m3Product& call, int processors, cudaStream_t stream) {
  using Few = FewE4m3Rows<kRows>;
  const auto kernel = few_e4m3_rows_kernel<kRows>;
  const int bytes = Few::bytes(call.layout.steps());
  if (const cudaError_t error = allow_bytes(reinterpret_cast<const void*>(kernel), bytes);
      error != cudaSuccess) {
    return error;
  }
  const std::int64_t blocks = call.layout.blocks(call.product.rows);
  const std::int64_t at_once = std::min(tiles_of(call.product.weights.outputs),
                                        std::max<std::int64_t>(processors / blocks, 1));
  return launch_early(
      kernel,
      {.blocks = dim3(static_cast<unsigned>(at_once), static_cast<unsigned>(blocks)),
       .threads = Few::kThreads,
       .shared_bytes = static_cast<std::size_t>(bytes)},
      stream, call);
}

template <int kBlocks>
cudaError_t launch_wide(const E4m3Product& call, cudaStream_t stream) {
  using Wide = WideE4m3Rows<kBlocks>;
  const auto kernel = wide_e4m3_rows_kernel<kBlocks>;
  if (const cudaError_t error = allow_bytes(reinterpret_cast<const void*>(kernel), Wide::kBytes);
      error != cudaSuccess) {
    return error;
  }
  const dim3 blocks(
      static_cast<unsigned>(call.layout.blocks(call.product.rows) * kCodedSlices),
      static_cast<unsigned>((call.product.weights.outputs + Wide::kOutputs - 1) / Wide::kOutputs));
  return launch_early(kernel,
                      {.blocks = blocks,
                       .threads = Wide::kThreads,
                       .shared_bytes = Wide::kBytes,
                       .cluster = kCodedSlices},
                      stream, call);
}

template <int kParts>
cudaError_t launch_many(const E4m3Product& call, int processors, cudaStream_t stream) {
  using Many = ManyE4m3Rows<kParts>;
  const auto kernel = many_e4m3_rows_kernel<kParts>;
  if (const cudaError_t error = allow_bytes(reinterpret_cast<const void*>(kernel), Many::kBytes);
      error != cudaSuccess) {
    return error;
  }
  constexpr std::int64_t kPairOutputs = std::int64_t{Many::kPair} * Many::kOutputs;
  const std::int64_t pairs = (call.product.weights.outputs + kPairOutputs - 1) / kPairOutputs *
                             call.layout.blocks(call.product.rows);
  const std::int64_t at_once = std::min<std::int64_t>(pairs, processors / Many::kPair);
  return launch_early(kernel,
                      {.blocks = static_cast<unsigned>(at_once * Many::kPair),
                       .threads = Many::kThreads,
                       .shared_bytes = Many::kBytes,
                       .cluster = Many::kPair},
                      stream, call);
}

}  // namespace

std::int64_t e4m3_rows_bytes(std::int64_t rows, std::int64_t inputs) {
  // Whichever kernel serves them: no more than a block is filled up, and no more than a step.
  const CodedRows most{.inputs = inputs + std::int64_t{kCodedSlices} * kUnitInputs,
                       .block_rows = ManyE4m3Rows<2>::kRows};
  return row_scale_bytes(rows) + most.blocks(rows) * most.block_bytes();
}

cudaError_t multiply_e4m3(const CodedProduct& product, std::byte* rows, cudaStream_t stream) {
  if (product.rows == 0) {
    return cudaSuccess;
  }
  int processors = 0;
  if (const cudaError_t error = count_processors(processors); error != cudaSuccess) {
    return error;
  }
  const Choice choice = choose(product.rows, product.weights, processors);
  E4m3Product call{.product = product,
                   .layout = {.inputs = product.weights.inputs,
                              .block_rows = choice.block_rows,
                              .sliced = choice.kernel == Choice::Kernel::kFew}};
  if (choice.block_rows == 2) {
    return launch_few<2>(call, processors, stream);
  }
  if (const cudaError_t error = code_rows({.dtype = product.dtype,
                                           .x = product.x,
                                           .rows = product.rows,
                                           .to = call.layout,
                                           .out = rows},
                                          stream);
      error != cudaSuccess) {
    return error;
  }
  call.row_scales = reinterpret_cast<const float*>(rows);
  call.rows = rows + row_scale_bytes(product.rows);
  const int parts = choice.block_rows / 128;
  switch (choice.kernel) {
    case Choice::Kernel::kFew:
      return choice.block_rows == 8 ? launch_few<8>(call, processors, stream)
                                    : launch_few<16>(call, processors, stream);
    case Choice::Kernel::kWide:
      return choice.block_rows == 32   ? launch_wide<4>(call, stream)
             : choice.block_rows == 64 ? launch_wide<8>(call, stream)
                                       : launch_wide<16>(call, stream);
    case Choice::Kernel::kMany:
      return parts == 1 ? launch_many<1>(call, processors, stream)
                        : launch_many<2>(call, processors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace quire::kernels::cuda
