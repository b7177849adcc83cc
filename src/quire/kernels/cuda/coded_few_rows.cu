// Products of up to 16 rows at a time with quantised weights.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/kernels/cuda/coded_few_rows.cuh"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

// kAtOnce: blocks on a multiprocessor.
template <CodeFormat kFormat, DType T, int kTiles, int kBlocks, int kUnits, int kAtOnce>
__global__ void __launch_bounds__(kFewRowsThreads, kAtOnce)
    few_rows_kernel(const CodedProduct product) {
  FewRows<kFormat, T, kTiles, kBlocks, kUnits>::run(product, {.index = blockIdx.y});
}

// Launches as many blocks as run at once. They go through all tiles, and ask for the weights of a
// tile while they multiply the one before.
template <CodeFormat kFormat, DType T, int kTiles, int kBlocks, int kUnits, int kAtOnce>
cudaError_t launch_tiles(const CodedProduct& product, int processors, cudaStream_t stream) {
  constexpr std::int64_t kOutputs = std::int64_t{kTiles} * kTileOutputs;
  constexpr std::int64_t kRows = std::int64_t{kBlocks} * kFewColumns;
  const std::int64_t groups = (product.weights.outputs + kOutputs - 1) / kOutputs;
  const dim3 blocks(static_cast<unsigned>(std::min(groups, std::int64_t{kAtOnce} * processors)),
                    static_cast<unsigned>((product.rows + kRows - 1) / kRows));
  return launch_early(few_rows_kernel<kFormat, T, kTiles, kBlocks, kUnits, kAtOnce>,
                      {blocks, kFewRowsThreads}, stream, product);
}

// Launches what measured fastest on an H200 for up to eight rows. Two tiles share a look at the
// activations. Where two blocks of a tile each are enough for a multiprocessor, more units of them
// are on their way. Elsewhere more blocks at once are worth more.
template <CodeFormat kFormat, DType T>
cudaError_t launch_eight(const CodedProduct& product, int processors, cudaStream_t stream) {
  const bool few_tiles = tiles_of(product.weights.outputs) <= std::int64_t{2} * processors;
  if constexpr (kFormat == CodeFormat::kQ4) {
    return launch_tiles<kFormat, T, 1, 1, 2, 3>(product, processors, stream);
  } else if constexpr (kFormat == CodeFormat::kQ4Minimum) {
    return few_tiles ? launch_tiles<kFormat, T, 1, 1, 3, 2>(product, processors, stream)
                     : launch_tiles<kFormat, T, 2, 1, 2, 2>(product, processors, stream);
  } else {
    return few_tiles ? launch_tiles<kFormat, T, 1, 1, 2, 2>(product, processors, stream)
                     : launch_tiles<kFormat, T, 1, 1, 1, 3>(product, processors, stream);
  }
}

// Launches for up to sixteen rows at a time. Units of q8g32 and q4m32 take too many registers for
// two tiles.
template <CodeFormat kFormat, DType T>
cudaError_t launch_sixteen(const CodedProduct& product, int processors, cudaStream_t stream) {
  if constexpr (kFormat == CodeFormat::kQ4 || kFormat == CodeFormat::kE4m3) {
    if (product.weights.outputs >= std::int64_t{2} * kTileOutputs * processors) {
      return launch_tiles<kFormat, T, 2, 2, 2, 2>(product, processors, stream);
    }
  }
  return launch_tiles<kFormat, T, 1, 2, 2, 2>(product, processors, stream);
}

}  // namespace

cudaError_t multiply_few_rows(const CodedProduct& product, cudaStream_t stream) {
  if (product.rows == 0) {
    return cudaSuccess;
  }
  int processors = 0;
  if (const cudaError_t error = count_processors(processors); error != cudaSuccess) {
    return error;
  }
  return launch_for_codes(product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_for_dtype(product.dtype, [&]<DType T>() {
      return product.rows <= kFewColumns ? launch_eight<kFormat, T>(product, processors, stream)
                                         : launch_sixteen<kFormat, T>(product, processors, stream);
    });
  });
}

}  // namespace quire::kernels::cuda
