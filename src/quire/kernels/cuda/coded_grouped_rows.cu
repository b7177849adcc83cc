// Products of groups of rows with quantised weights: the kernel of few rows, on the matrix of each
// group's expert.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/kernels/cuda/coded_few_rows.cuh"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kUnitsAhead = 2;
constexpr int kAtOnce = 2;           // blocks on a multiprocessor
constexpr std::int64_t kRounds = 2;  // blocks for each place on a multiprocessor

template <CodeFormat kFormat, DType T, int kBlocks>
__global__ void __launch_bounds__(kFewRowsThreads, kAtOnce)
    multiply_coded_groups_kernel(const GroupedProduct product) {
  begin_kernel();
  const ExpertRows group = product.groups[blockIdx.y];
  if (group.count == 0) {
    return;
  }
  const ExpertMatrices& weights = product.weights;
  const std::int64_t bytes = device_code_bytes(kFormat, weights.outputs, weights.inputs);
  const bool looks_up = product.row_of != nullptr;
  FewRows<kFormat, T, 1, kBlocks, kUnitsAhead>::run(
      {.dtype = T,
       .weights = {kFormat, weights.data + group.expert * bytes, weights.outputs, weights.inputs},
       .x = looks_up ? product.x : product.x + group.first * weights.inputs,
       .out = product.out + group.first * weights.outputs,
       .rows = group.count},
      {.row_of = looks_up ? product.row_of + group.first : nullptr});
}

}  // namespace

cudaError_t multiply_coded_groups(const GroupedProduct& product, cudaStream_t stream) {
  if (product.num_groups == 0) {
    return cudaSuccess;
  }
  int processors = 0;
  if (const cudaError_t error = count_processors(processors); error != cudaSuccess) {
    return error;
  }
  const std::int64_t wanted = kRounds * kAtOnce * processors / product.num_groups;
  const dim3 blocks(
      static_cast<unsigned>(std::clamp(wanted, std::int64_t{1}, tiles_of(product.weights.outputs))),
      static_cast<unsigned>(product.num_groups));
  return launch_for_groups(*product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_for_dtype(product.dtype, [&]<DType T>() {
      return launch_early(product.block_rows <= kFewColumns
                              ? multiply_coded_groups_kernel<kFormat, T, 1>
                              : multiply_coded_groups_kernel<kFormat, T, 2>,
                          {blocks, kFewRowsThreads}, stream, product);
    });
  });
}

}  // namespace quire::kernels::cuda
