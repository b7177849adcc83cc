#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/e4m3_rows.cuh"
#include "quire/kernels/cuda/e4m3_rows.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kLanes = kGroupInputs / kLaneInputs;  // that share the vectors of a group

struct Group {
  int place = 0;
  int vector = -1;
};

// Returns the group of that number, those included that slices lack.
__device__ __forceinline__ Group group_of(const CodedRows& to, int number, int row) {
  const int units = to.units(), steps = to.steps();
  if (!to.sliced) {
    return {number * 2 * to.columns() * kVectorBytes + row * kVectorBytes, number * kLanes};
  }
  const int group = number % kUnitGroups, at = number / kUnitGroups;
  const int slice = at / steps, step = at - slice * steps;
  const int begin = coded_slice_start(units, slice), end = coded_slice_start(units, slice + 1);
  return {to.place(row, slice, step, group),
          begin + step < end ? ((begin + step) * kUnitGroups + group) * kLanes : -1};
}

// A row on its way to its codes. A lane t of each quad has inputs 8t to 8t + 7 of a group.
template <DType T>
struct RowWriter {
  const CodedRows& to;
  const uint4* x;    // the row
  std::byte* block;  // of its codes
  int row;           // of the block
  RowScale scale;

  // Writes each `stride`th group. Some are read at a time, so that they are on their way together.
  __device__ __forceinline__ void write(int first, int stride, int t) const {
    constexpr int kAtOnce = 4;
    const int groups = (to.sliced ? kCodedSlices : 1) * to.steps() * kUnitGroups;
    const auto vectors = static_cast<int>(to.inputs / kLaneInputs);
    for (int number = first; number < groups; number += kAtOnce * stride) {
      uint4 values[kAtOnce] = {};
      Group group[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (number + i * stride < groups) {
          group[i] = group_of(to, number + i * stride, row);
          if (group[i].vector >= 0 && group[i].vector + t < vectors) {
            values[i] = x[group[i].vector + t];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (number + i * stride < groups) {
          std::byte* const at = block + group[i].place + t * 4;
          const uint4& eight = values[i];
          *reinterpret_cast<std::uint32_t*>(at) = scale.codes<T>(eight.x, eight.y);
          *reinterpret_cast<std::uint32_t*>(at + to.columns() * kVectorBytes) =
              scale.codes<T>(eight.z, eight.w);
        }
      }
    }
  }
};

// Returns the block of codes that has a row.
__device__ __forceinline__ std::byte* block_of(const CodeRowsParams& params, std::int64_t row) {
  return params.out + row_scale_bytes(params.rows) +
         row / params.to.block_rows * params.to.block_bytes();
}

// A block to a row.
template <DType T>
__global__ void code_row_kernel(const CodeRowsParams params) {
  begin_kernel();
  const CodedRows& to = params.to;
  const std::int64_t row = blockIdx.x;
  const auto* const x = reinterpret_cast<const uint4*>(params.x + row * to.inputs);
  const auto vectors = static_cast<int>(to.inputs / kLaneInputs);
  const RowScale scale = scale_of_row<T>(x, vectors);
  if (threadIdx.x == 0) {
    reinterpret_cast<float*>(params.out)[row] = scale.scale;
  }
  const RowWriter<T> writer{to, x, block_of(params, row), static_cast<int>(row % to.block_rows),
                            scale};
  writer.write(static_cast<int>(threadIdx.x) / kLanes, static_cast<int>(blockDim.x) / kLanes,
               static_cast<int>(threadIdx.x) % kLanes);
}

constexpr int kRowsAtOnce = 8;  // whose vectors are a line of the cache
constexpr int kRowsThreads = 512;

// A block to eight rows. Lane (g, t) has inputs 8t to 8t + 7 of groups of row g.
template <DType T>
__global__ void __launch_bounds__(kRowsThreads) code_rows_kernel(const CodeRowsParams params) {
  begin_kernel();
  constexpr int kWarps = kRowsThreads / kWarpLanes;
  const CodedRows& to = params.to;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes, g = lane / kLanes, t = lane % kLanes;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsAtOnce + g;
  const std::int64_t there = row < params.rows ? row : params.rows - 1;
  const auto* const x = reinterpret_cast<const uint4*>(params.x + there * to.inputs);
  const auto vectors = static_cast<int>(to.inputs / kLaneInputs);
  std::uint32_t pair = 0;
#pragma unroll 4
  for (int i = warp * kLanes + t; i < vectors; i += kWarps * kLanes) {
    pair = larger_of(pair, x[i]);
  }
  __shared__ std::uint32_t of_lanes[kWarps][kWarpLanes];
  of_lanes[warp][lane] = pair;
  __syncthreads();
  for (int i = 0; i < kWarps * kLanes; ++i) {
    pair = __vmaxu2(pair, of_lanes[i / kLanes][g * kLanes + i % kLanes]);
  }
  const RowScale scale = scale_of<T>(max(pair & 0xffffu, pair >> 16));
  if (row >= params.rows) {
    return;
  }
  if (warp == 0 && t == 0) {
    reinterpret_cast<float*>(params.out)[row] = scale.scale;
  }
  const RowWriter<T> writer{to, x, block_of(params, row), static_cast<int>(row % to.block_rows),
                            scale};
  writer.write(warp, kWarps, t);
}

// Returns a code times `scale` as a number of T, in the low half.
template <DType T>
__device__ std::uint32_t widen_code(std::uint32_t code, float scale) {
  const __half_raw half =
      __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code & 0xffu), __NV_E4M3);
  return Element<T>::round(__fmul_rn(__half2float(__half(half)), scale));
}

// A block to a row.
template <DType T>
__global__ void round_rows_kernel(const RoundRowsParams params) {
  begin_kernel();
  const std::int64_t row = blockIdx.x;
  const auto* const x = reinterpret_cast<const uint4*>(params.x + row * params.inputs);
  const auto vectors = static_cast<int>(params.inputs / kLaneInputs);
  const RowScale scale = scale_of_row<T>(x, vectors);
  const float factor = params.scales == nullptr ? scale.scale : 1.0f;
  if (threadIdx.x == 0 && params.scales != nullptr) {
    params.scales[row] = scale.scale;
  }
  auto* const out = reinterpret_cast<uint2*>(params.out + row * params.inputs);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * vectors; i += static_cast<int>(blockDim.x)) {
    const uint2 values = reinterpret_cast<const uint2*>(x)[i];
    const std::uint32_t codes = scale.codes<T>(values.x, values.y);
    out[i] = {widen_code<T>(codes, factor) | widen_code<T>(codes >> 16, factor) << 16,
              widen_code<T>(codes >> 8, factor) | widen_code<T>(codes >> 24, factor) << 16};
  }
}

}  // namespace

cudaError_t code_rows(const CodeRowsParams& params, cudaStream_t stream) {
  constexpr std::int64_t kFewRows = 64;  // that each have a block, so that they take less time
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    if (params.rows <= kFewRows) {
      return launch_early(code_row_kernel<T>, {static_cast<unsigned>(params.rows), 512}, stream,
                          params);
    }
    const std::int64_t blocks = (params.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    return launch_early(code_rows_kernel<T>, {static_cast<unsigned>(blocks), kRowsThreads}, stream,
                        params);
  });
}

cudaError_t round_rows(const RoundRowsParams& params, cudaStream_t stream) {
  return launch_for_dtype(params.dtype, [&]<DType T>() {
    return launch_early(round_rows_kernel<T>, {static_cast<unsigned>(params.rows), 256}, stream,
                        params);
  });
}

}  // namespace quire::kernels::cuda
