#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_matrix.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;

// A thread to a vector: `in_units` of units, then four scales each, or the table.
__global__ void arrange_kernel(const PackedCodes from, std::int64_t in_units, std::int64_t vectors,
                               uint4* out) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= vectors) {
    return;
  }
  if (index >= in_units && has_table(from.format)) {
    out[index] = {packed_table(from, 0), packed_table(from, 1), packed_table(from, 2),
                  packed_table(from, 3)};
    return;
  }
  if (index >= in_units) {
    const std::int64_t output = (index - in_units) * 4;
    out[index] = {packed_scale(from, output), packed_scale(from, output + 1),
                  packed_scale(from, output + 2), packed_scale(from, output + 3)};
    return;
  }
  const int unit_size = unit_vectors(from.format);
  const std::int64_t units = units_of(from.inputs), place = index / unit_size;
  const int vector = static_cast<int>(index % unit_size);
  const std::int64_t tile = place / units, unit = place % units;
  out[index] = {unit_word(from, tile, unit, vector, 0), unit_word(from, tile, unit, vector, 1),
                unit_word(from, tile, unit, vector, 2), unit_word(from, tile, unit, vector, 3)};
}

// Writes inputs 8t to 8t + 7 of a group for row g or g + 8.
template <CodeFormat kFormat, DType T>
__device__ __forceinline__ void expand_row(const LaneUnit<kFormat>& unit, float output_scale,
                                           const std::uint32_t (&a)[2][4], int group, int half,
                                           uint4* to) {
  constexpr int kHalves = LaneUnit<kFormat>::kHalves;
  const int step = group * kHalves + (kHalves == 1 || is_in_half(0) ? 0 : 1);
  const float scale = kFormat == CodeFormat::kE4m3 ? output_scale : unit.step_head(0, half, step);
  const float minimum = LaneUnit<kFormat>::kHasMinimum ? unit.step_head(1, half, step) : 0.0f;
  const auto weights = [&](std::uint32_t codes) {
    float low = __fmul_rn(scale, Element<T>::widen_low(codes));
    float high = __fmul_rn(scale, Element<T>::widen_high(codes));
    if constexpr (LaneUnit<kFormat>::kHasMinimum) {
      low = __fadd_rn(low, minimum);
      high = __fadd_rn(high, minimum);
    }
    return Element<T>::round_pair(low, high);
  };
  *to = {weights(a[0][half]), weights(a[0][half + 2]), weights(a[1][half]),
         weights(a[1][half + 2])};
}

// A warp to a unit.
template <CodeFormat kFormat, DType T>
__global__ void __launch_bounds__(kThreads) expand_kernel(const ExpandParams params) {
  begin_kernel();
  const std::int64_t units = units_of(params.weights.inputs);
  const std::int64_t index =
      std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  if (index >= tiles_of(params.count) * units) {
    return;
  }
  const std::int64_t tile = index / units, unit = index % units;
  const float* const scales = output_scales(params.weights);
  const auto* from = reinterpret_cast<const uint4*>(params.weights.data) +
                     ((params.first / kTileOutputs + tile) * units + unit) * unit_vectors(kFormat);
  LaneUnit<kFormat> mine;
  mine.template load<true>(from, lane);
  const uint4 table = table_of<kFormat>(params.weights);
#pragma unroll
  for (int group = 0; group < kUnitGroups; ++group) {
    std::uint32_t a[2][4];
    mine.template operands<T>(group, table, a);
    const std::int64_t input = unit * kUnitInputs + group * kGroupInputs + lane % 4 * kLaneInputs;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t output = tile * kTileOutputs + lane / 4 + half * 8;
      if (output < params.count && input < params.weights.inputs) {
        expand_row<kFormat, T>(
            mine, scales == nullptr ? 1.0f : scales[params.first + output], a, group, half,
            reinterpret_cast<uint4*>(params.out + output * params.weights.inputs + input));
      }
    }
  }
}

__device__ std::uint32_t bits_at(const std::uint32_t* words, const CodePlace& place, int bits) {
  return words[place.word] >> place.shift & ((1u << bits) - 1);
}

__global__ void __launch_bounds__(kThreads)
    embed_kernel(const CodedWeights table, const EmbedParams params) {
  begin_kernel();
  const std::int32_t from = params.from[blockIdx.x];
  const std::int32_t id = from < 0 ? params.ids[blockIdx.x] : max(params.chosen[from], 0);
  const auto* words = reinterpret_cast<const std::uint32_t*>(table.data);
  const std::int64_t units = units_of(table.inputs);
  float* to = params.out + std::int64_t{blockIdx.x} * params.width;
  for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
    const CodeFormat format = table.format;
    const auto head = [&](int index) {
      const std::uint32_t bits = bits_at(words, head_place(format, index, units, id, i), 16);
      return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    };
    const auto multiple = [&](int kind) {
      return static_cast<float>(
          static_cast<signed char>(bits_at(words, multiple_place(format, kind, units, id, i), 8)));
    };
    int value =
        static_cast<int>(bits_at(words, code_place(format, units, id, i), code_bits(format))) -
        code_offset(format);
    if (has_table(format)) {
      value = static_cast<int>(reinterpret_cast<const unsigned char*>(
                  table.data + unit_bytes(format, table.outputs, table.inputs))[value]) -
              128;
    }
    float scale = has_table(format) ? __uint_as_float(words[wide_scale_place(format, units, id, i)])
                                    : head(0);
    scale = has_halves(format) ? __fmul_rn(scale, multiple(0)) : scale;
    const float product = __fmul_rn(scale, static_cast<float>(value));
    const float minimum = !has_minimum(format) ? 0.0f
                          : has_halves(format) ? __fmul_rn(head(1), multiple(1))
                                               : head(1);
    to[i] = has_minimum(format) ? __fadd_rn(product, minimum) : product;
  }
}

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

cudaError_t arrange_codes(const std::byte* packed, const CodedWeights& sizes, std::byte* out,
                          cudaStream_t stream) {
  const PackedCodes from{sizes.format, reinterpret_cast<const std::uint8_t*>(packed), sizes.outputs,
                         sizes.inputs};
  const std::int64_t in_units =
      unit_bytes(sizes.format, sizes.outputs, sizes.inputs) / kVectorBytes;
  const std::int64_t vectors =
      device_code_bytes(sizes.format, sizes.outputs, sizes.inputs) / kVectorBytes;
  arrange_kernel<<<blocks_for(vectors, kThreads), kThreads, 0, stream>>>(
      from, in_units, vectors, reinterpret_cast<uint4*>(out));
  return cudaGetLastError();
}

cudaError_t expand_codes(const ExpandParams& params, cudaStream_t stream) {
  const std::int64_t units = tiles_of(params.count) * units_of(params.weights.inputs);
  return launch_for_codes(params.weights.format, [&]<CodeFormat kFormat>() {
    return launch_for_dtype(params.dtype, [&]<DType T>() {
      return launch_early(expand_kernel<kFormat, T>, {blocks_for(units, kWarps), kThreads}, stream,
                          params);
    });
  });
}

cudaError_t embed_codes(const CodedWeights& table, const EmbedParams& params, cudaStream_t stream) {
  if (table.format == CodeFormat::kE4m3) {
    return cudaErrorInvalidValue;  // no embedding is packed so
  }
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(embed_kernel, {static_cast<unsigned>(params.rows), kThreads}, stream, table,
                      params);
}

}  // namespace quire::kernels::cuda
