// Products of many rows with quantised weights on Hopper. A kernel arranges the rows as the right
// operands of warpgroups read them; those of coded_wide_rows.cuh multiply.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/coded_wide_rows.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/row_images.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kArrangeThreads = 256;

// Returns how many rows a block multiplies.
constexpr int rows_of_block(std::int64_t rows) { return rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

struct ArrangeParams {
  const Half* x = nullptr;
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::byte* images = nullptr;  // [blocks of rows][units][image_bytes]
  int block_rows = 0;
  int image_bytes = 0;
  const ExpertRows* groups = nullptr;  // a block of rows each; null: rows follow each other
  const std::int32_t* row_of = nullptr;
  int sums = 0;  // of each group: none, one, or one of each half
};

// A warp to eight rows of a group, a lane to inputs 8t to 8t + 7 of a row. Behind the vectors of an
// image lie sums [groups or halves of them][rows].
template <DType T>
__global__ void __launch_bounds__(kArrangeThreads) arrange_rows_kernel(const ArrangeParams params) {
  begin_kernel();
  const std::int64_t warp = (std::int64_t{blockIdx.x} * kArrangeThreads + threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes, g = lane / 4, t = lane % 4;
  const std::int64_t units = units_of(params.inputs);
  const std::int64_t groups = units * kUnitGroups;
  const std::int64_t first = warp / groups * kWideColumns;
  const std::int64_t unit = warp % groups / kUnitGroups;
  const int group = static_cast<int>(warp % kUnitGroups);
  const std::int64_t block = first / params.block_rows;
  if (first >= (params.rows + params.block_rows - 1) / params.block_rows * params.block_rows) {
    return;
  }
  const std::int64_t row = first + g;
  const int in_block = static_cast<int>(row % params.block_rows);
  std::int64_t from = row < params.rows ? row : -1;
  if (params.groups != nullptr) {
    const ExpertRows of = params.groups[block];
    if (of.count == 0) {
      return;
    }
    const std::int64_t place = of.first + in_block;
    from = in_block >= of.count ? -1 : params.row_of == nullptr ? place : params.row_of[place];
  }
  const std::int64_t input = unit * kUnitInputs + group * kGroupInputs + t * kLaneInputs;
  const uint4 values =
      from >= 0 && input < params.inputs
          ? *reinterpret_cast<const uint4*>(params.x + from * params.inputs + input)
          : uint4{};
  std::byte* const image = params.images + (block * units + unit) * params.image_bytes;
  const std::uint32_t all[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::byte* const vector = image + image_place(params.block_rows, in_block, group * 4 + i);
    reinterpret_cast<std::uint32_t*>(vector)[t] = all[i];
  }
  for (int half = 0; half < params.sums; ++half) {
    float sums[4] = {};
    sum_inputs<T>(sums, values, params.sums == 1 || is_in_half(half));
    if (g == 0) {
      const int column = static_cast<int>(first % params.block_rows) + t * 2;
      auto* const to = reinterpret_cast<float*>(image + params.block_rows * kUnitInputs * 2) +
                       (group * params.sums + half) * params.block_rows + column;
      *reinterpret_cast<float2*>(to) = {sums[0], sums[1]};
    }
  }
}

// Arranges rows, or the places of groups, as `params` says; sets what the format tells.
cudaError_t arrange_rows(DType dtype, CodeFormat format, ArrangeParams params,
                         cudaStream_t stream) {
  params.image_bytes = wide_image_bytes(format, params.block_rows);
  params.sums = has_minimum(format) ? unit_steps(format) / kUnitGroups : 0;
  const std::int64_t warps = (params.rows + params.block_rows - 1) / params.block_rows *
                             (params.block_rows / kWideColumns) * units_of(params.inputs) *
                             kUnitGroups;
  const auto blocks =
      static_cast<unsigned>((warps * kWarpLanes + kArrangeThreads - 1) / kArrangeThreads);
  return launch_for_dtype(dtype, [&]<DType T>() {
    return launch_early(arrange_rows_kernel<T>, {.blocks = blocks, .threads = kArrangeThreads},
                        stream, params);
  });
}

// Returns whether whole outputs would leave more than a quarter of the multiprocessors of the
// current device idle. Slices cost more beside their products.
bool wants_slices(const CodedProduct& product, int block_rows) {
  int processors = 0;
  if (count_processors(processors) != cudaSuccess) {
    return true;
  }
  const std::int64_t blocks = (product.rows + block_rows - 1) / block_rows *
                              ((product.weights.outputs + kWideOutputs - 1) / kWideOutputs);
  return blocks * 4 < std::int64_t{processors} * 3;
}

}  // namespace

bool can_multiply_wide() {
  // Code that was compiled for an earlier device, and translated for this one, has empty kernels.
  constexpr int kHopper = 90;
  int device = 0, major = 0;
  cudaFuncAttributes attributes = {};
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaFuncGetAttributes(&attributes, arrange_rows_kernel<DType::kBFloat16>) == cudaSuccess &&
         major == 9 && attributes.ptxVersion >= kHopper;
}

std::int64_t wide_rows_bytes(CodeFormat format, std::int64_t rows, std::int64_t inputs) {
  const int block_rows = rows_of_block(rows);
  return (rows + block_rows - 1) / block_rows * units_of(inputs) *
         wide_image_bytes(format, block_rows);
}

std::int64_t grouped_images_bytes(CodeFormat format, std::int64_t groups, std::int64_t inputs) {
  return groups * units_of(inputs) * wide_image_bytes(format, kGroupedWideRows);
}

cudaError_t multiply_wide_groups(const GroupedProduct& product, cudaStream_t stream) {
  if (product.num_groups == 0) {
    return cudaSuccess;
  }
  const CodeFormat format = *product.weights.format;
  const std::int64_t inputs = product.weights.inputs;
  const cudaError_t error = arrange_rows(product.dtype, format,
                                         {.x = product.x,
                                          .rows = product.num_groups * kGroupedWideRows,
                                          .inputs = inputs,
                                          .images = product.images,
                                          .block_rows = kGroupedWideRows,
                                          .groups = product.groups,
                                          .row_of = product.row_of},
                                         stream);
  if (error != cudaSuccess) {
    return error;
  }
  const WideProduct wide{
      .product = {.dtype = product.dtype,
                  .weights = {format, product.weights.data, product.weights.outputs, inputs},
                  .out = product.out},
      .images = product.images,
      .block_rows = kGroupedWideRows,
      .groups = product.groups,
      .num_groups = product.num_groups};
  return product.dtype == DType::kBFloat16 ? launch_wide_bf16(wide, stream)
                                           : launch_wide_fp16(wide, stream);
}

cudaError_t multiply_wide_rows(const CodedProduct& product, std::byte* images,
                               cudaStream_t stream) {
  if (product.rows == 0) {
    return cudaSuccess;
  }
  const int block_rows = rows_of_block(product.rows);
  const cudaError_t error = arrange_rows(product.dtype, product.weights.format,
                                         {.x = product.x,
                                          .rows = product.rows,
                                          .inputs = product.weights.inputs,
                                          .images = images,
                                          .block_rows = block_rows},
                                         stream);
  if (error != cudaSuccess) {
    return error;
  }
  const WideProduct wide{.product = product,
                         .images = images,
                         .block_rows = block_rows,
                         .split = wants_slices(product, block_rows)};
  return product.dtype == DType::kBFloat16 ? launch_wide_bf16(wide, stream)
                                           : launch_wide_fp16(wide, stream);
}

}  // namespace quire::kernels::cuda
