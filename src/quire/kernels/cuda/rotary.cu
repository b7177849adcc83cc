#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/rotary.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kThreads = 128;

__global__ void fill_kernel(const double* inverse_frequencies, double scale,
                            const std::int32_t* positions, std::int64_t count,
                            const RotaryTable table) {
  begin_kernel();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count * table.half) {
    return;
  }
  double sine = 0;
  double cosine = 0;
  sincos(positions[i / table.half] * inverse_frequencies[i % table.half], &sine, &cosine);
  table.cos[i] = static_cast<float>(cosine * scale);
  table.sin[i] = static_cast<float>(sine * scale);
}

// Returns element `dim` of a head rotated by row `row`. Products are rounded before they are added,
// as on the CPU.
__device__ __forceinline__ float rotated(const float* head, int dim, const RotaryTable& table,
                                         std::int64_t row) {
  const int half = table.half;
  if (dim >= 2 * half) {
    return head[dim];
  }
  const int pair = dim < half ? dim : dim - half;
  const float cosine = table.cos[row * half + pair], sine = table.sin[row * half + pair];
  const float low = head[pair], high = head[pair + half];
  return dim < half ? __fsub_rn(__fmul_rn(low, cosine), __fmul_rn(high, sine))
                    : __fadd_rn(__fmul_rn(high, cosine), __fmul_rn(low, sine));
}

constexpr int kHeadsOfBlock = kThreads / 32;
constexpr int kVector = 4;  // neighbours that a lane takes

// Returns a query as it is stored.
template <DType T>
__device__ __forceinline__ float saturated(float x, bool saturates) {
  if constexpr (T == DType::kFloat16) {
    constexpr float kMost = 65504;
    if (saturates && fabsf(x) > kMost && fabsf(x) < INFINITY) {
      return copysignf(kMost, x);
    }
  }
  return x;
}

// Four neighbours of a head, rotated by row `row`, from `dim` on, a multiple of four. So are the
// sizes of the head and of the table.
__device__ __forceinline__ float4 rotated_four(const float* head, int dim, const RotaryTable& table,
                                               std::int64_t row) {
  const int half = table.half;
  if (dim >= 2 * half) {
    return *reinterpret_cast<const float4*>(head + dim);
  }
  const bool is_low = dim < half;
  const int pair = is_low ? dim : dim - half;
  const float4 cosine = *reinterpret_cast<const float4*>(table.cos + row * half + pair);
  const float4 sine = *reinterpret_cast<const float4*>(table.sin + row * half + pair);
  const float4 low = *reinterpret_cast<const float4*>(head + pair);
  const float4 high = *reinterpret_cast<const float4*>(head + pair + half);
  const auto rotate = [&](float l, float h, float c, float s) {
    return is_low ? __fsub_rn(__fmul_rn(l, c), __fmul_rn(h, s))
                  : __fadd_rn(__fmul_rn(h, c), __fmul_rn(l, s));
  };
  return {rotate(low.x, high.x, cosine.x, sine.x), rotate(low.y, high.y, cosine.y, sine.y),
          rotate(low.z, high.z, cosine.z, sine.z), rotate(low.w, high.w, cosine.w, sine.w)};
}

// Where a head goes, and how.
struct StoredHead {
  Half* out = nullptr;
  int stored_dim = 0;
  bool rotates = true;
  bool saturates = false;
};

// Writes a head, rotated by row `row`, zeros behind its size. The lanes of a warp call it.
template <DType T>
__device__ __forceinline__ void write_head(const QKVRows& from, const float* head,
                                           const RotaryTable& table, std::int64_t row,
                                           const StoredHead& to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, head_dim = from.head_dim;
  if ((from.stride | head_dim | table.half | to.stored_dim) % kVector == 0) {
    for (int dim = lane * kVector; dim < to.stored_dim; dim += 32 * kVector) {
      float4 x = {};
      if (dim < head_dim) {
        x = to.rotates ? rotated_four(head, dim, table, row)
                       : *reinterpret_cast<const float4*>(head + dim);
      }
      const bool saturates = to.saturates;
      *reinterpret_cast<uint2*>(to.out + dim) = {
          Element<T>::round_pair(saturated<T>(x.x, saturates), saturated<T>(x.y, saturates)),
          Element<T>::round_pair(saturated<T>(x.z, saturates), saturated<T>(x.w, saturates))};
    }
    return;
  }
  for (int dim = lane; dim < to.stored_dim; dim += 32) {
    const float x = dim >= head_dim ? 0.0f
                    : to.rotates    ? rotated(head, dim, table, row)
                                    : head[dim];
    to.out[dim] = Element<T>::round(saturated<T>(x, to.saturates));
  }
}

// Returns the slot of a row; block -1: the row is not stored here.
__device__ __forceinline__ tensor::KVSlot slot_of(const AppendedRows& rows, std::int64_t row) {
  const bool other = rows.formats != nullptr && rows.formats[row] != rows.format;
  return other ? tensor::KVSlot{.block = -1} : rows.slots[row];
}

// Appends one token's KV head. The lanes of a warp call it.
template <DType T>
__device__ __forceinline__ void append_head(const QKVRows& from, const AppendedRows& rows,
                                            const KVLayer& to, std::int64_t token, int head) {
  const tensor::KVSlot slot = slot_of(rows, token);
  if (slot.block < 0) {
    return;
  }
  const float* k = from.qkv + token * from.stride + std::int64_t{from.heads + head} * from.head_dim;
  const float* v = k + std::int64_t{from.kv_heads} * from.head_dim;
  Half* out =
      to.data + head * to.head_stride + slot.block * to.block_stride + slot.offset * to.stored_dim;
  write_head<T>(from, k, rows.table, token, {.out = out, .stored_dim = to.stored_dim});
  write_head<T>(from, v, rows.table, token,
                {.out = out + to.v_offset, .stored_dim = to.stored_dim, .rotates = false});
}

// Rotates one head of a query. The lanes of a warp call it.
template <DType T>
__device__ __forceinline__ void rotate_head(const QKVRows& from, const RotaryTable& table,
                                            const QueryRows& queries, std::int64_t query,
                                            int head) {
  const float* q = from.qkv + queries.rows[query] * from.stride + head * from.head_dim;
  write_head<T>(from, q, table, query,
                {.out = queries.out + (query * from.heads + head) * queries.stored_dim,
                 .stored_dim = queries.stored_dim,
                 .saturates = queries.saturates});
}

// A warp to a head of a row. The first KV heads are appended, the heads behind them are queries.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    append_and_rotate_kernel(const QKVRows from, const AppendedRows rows, const KVLayer to,
                             const RotaryTable table, const QueryRows queries) {
  begin_kernel();
  const std::int64_t index = blockIdx.x;
  const int head =
      static_cast<int>(blockIdx.y) * kHeadsOfBlock + static_cast<int>(threadIdx.x) / 32;
  if (head < from.kv_heads) {
    if (index < rows.count) {
      append_head<T>(from, rows, to, index, head);
    }
  } else if (head < from.kv_heads + from.heads && index < queries.count) {
    rotate_head<T>(from, table, queries, index, head - from.kv_heads);
  }
}

constexpr int kCodeThreads = 64;         // a warp to K, a warp to V
constexpr int kMaxWords = 256 / 4 / 32;  // words of a lane

// Four neighbours of a head to a word of a lane; zeros behind the model's head size.
struct LaneNumbers {
  float x[kMaxWords][4];
};

// Returns the scale that kernels/kv_codes.h gives numbers whose largest has these bits; 0x7c00 or
// more where there is none.
__device__ __forceinline__ std::uint16_t scale_of(std::uint32_t largest) {
  using Half16 = Element<DType::kFloat16>;
  if (largest >= 0x7f800000u) {
    return 0x7c00;
  }
  const float least = __fdiv_rn(__uint_as_float(largest), 127.0f);
  const std::uint16_t scale = Half16::round(least);
  return scale + (scale < 0x7c00 && Half16::widen(scale) < least ? 1 : 0);
}

// Returns the code of kernels/kv_codes.cc: a quotient, rounded to the nearest integer, ties to
// even.
__device__ __forceinline__ int code_of(float x, float scale) {
  constexpr float kRoundingBias = 0x1.8p23f;
  return static_cast<int>(__fsub_rn(__fadd_rn(__fdiv_rn(x, scale), kRoundingBias), kRoundingBias));
}

// Adds the squares of a warp's numbers, and of the errors of their codes, to the sums.
__device__ __forceinline__ void add_errors(double error, double whole, double* to_error,
                                           double* to_whole) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    error += __shfl_xor_sync(0xffffffffu, error, lanes);
    whole += __shfl_xor_sync(0xffffffffu, whole, lanes);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(to_error, error);
    atomicAdd(to_whole, whole);
  }
}

// Stores one KV head of a token per block.
__global__ void __launch_bounds__(kCodeThreads)
    append_codes_kernel(const QKVRows from, const AppendedRows rows, const KVLayer to) {
  begin_kernel();
  const std::int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_value = threadIdx.x >= 32;
  const tensor::KVSlot slot = slot_of(rows, token);
  if (slot.block < 0) {
    return;
  }
  const float* in =
      from.qkv + token * from.stride +
      std::int64_t{from.heads + head + (is_value ? from.kv_heads : 0)} * from.head_dim;
  LaneNumbers numbers;
  std::uint32_t largest = 0;
#pragma unroll
  for (int word = 0; word < kMaxWords; ++word) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int dim = (word * 32 + lane) * 4 + i;
      float& x = numbers.x[word][i];
      x = dim >= from.head_dim ? 0.0f : is_value ? in[dim] : rotated(in, dim, rows.table, token);
      largest = max(largest, __float_as_uint(x) & 0x7fffffffu);
    }
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  std::uint16_t scale = scale_of(largest);
  const bool held = scale < 0x7c00;
  scale = held ? scale : 0;
  const float divisor = Element<DType::kFloat16>::widen(scale);
  Half* const block = to.data + head * to.head_stride + slot.block * to.block_stride;
  auto* const codes = reinterpret_cast<std::uint32_t*>(block + (is_value ? to.v_offset : 0) +
                                                       slot.offset * (to.stored_dim / 2));
  double error = 0, whole = 0;
#pragma unroll
  for (int word = 0; word < kMaxWords; ++word) {
    std::uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = numbers.x[word][i];
      const int code = scale == 0 ? 0 : code_of(x, divisor);
      packed |= static_cast<std::uint32_t>(code & 0xff) << 8 * i;
      if (to.errors != nullptr) {
        const double change = double{__fmul_rn(static_cast<float>(code), divisor)} - double{x};
        error += change * change;
        whole += double{x} * double{x};
      }
    }
    if ((word * 32 + lane) * 4 < to.stored_dim) {
      codes[word * 32 + lane] = packed;
    }
  }
  if (lane == 0) {
    block[(is_value ? to.v_scale_offset : to.scale_offset) + slot.offset] = scale;
    if (!held && to.refused != nullptr) {
      to.refused[token] = 1;
    }
  }
  if (to.errors != nullptr) {
    KVErrorSums& sums = to.errors[token];
    add_errors(error, whole, is_value ? &sums.value_error : &sums.key_error,
               is_value ? &sums.value_whole : &sums.key_whole);
  }
}

cudaError_t launch_append_and_rotate(const QKVRows& from, const AppendedRows& rows,
                                     const KVLayer& to, const RotaryTable& table,
                                     const QueryRows& queries, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(std::max(rows.count, queries.count));
  if (count == 0) {
    return cudaSuccess;
  }
  const dim3 grid(count, static_cast<unsigned>((from.kv_heads + from.heads + kHeadsOfBlock - 1) /
                                               kHeadsOfBlock));
  return launch_for_dtype(queries.count > 0 ? queries.dtype : to.dtype, [&]<DType T>() {
    return launch_early(append_and_rotate_kernel<T>, {grid, kThreads}, stream, from, rows, to,
                        table, queries);
  });
}

}  // namespace

cudaError_t fill_rotary(const double* inverse_frequencies, double scale,
                        const std::int32_t* positions, std::int64_t count, const RotaryTable& table,
                        cudaStream_t stream) {
  const std::int64_t all = count * table.half;
  if (all == 0) {
    return cudaSuccess;
  }
  const auto blocks = static_cast<unsigned>((all + kThreads - 1) / kThreads);
  return launch_early(fill_kernel, {blocks, kThreads}, stream, inverse_frequencies, scale,
                      positions, count, table);
}

cudaError_t append_kv(const QKVRows& from, const AppendedRows& rows, const KVLayer& to,
                      cudaStream_t stream) {
  if (to.format == tensor::KVFormat::kInt8 && rows.count > 0) {
    const dim3 blocks(static_cast<unsigned>(rows.count), static_cast<unsigned>(from.kv_heads));
    return launch_early(append_codes_kernel, {blocks, kCodeThreads}, stream, from, rows, to);
  }
  if (tensor::is_written_by_block(to.format)) {
    return cudaErrorInvalidValue;
  }
  return launch_append_and_rotate(from, rows, to, {}, {}, stream);
}

cudaError_t rotate_queries(const QKVRows& from, const RotaryTable& table, const QueryRows& to,
                           cudaStream_t stream) {
  return launch_append_and_rotate(from, {}, {}, table, to, stream);
}

cudaError_t append_and_rotate(const QKVRows& from, const AppendedRows& rows, const KVLayer& to,
                              const RotaryTable& table, const QueryRows& queries,
                              cudaStream_t stream) {
  if (to.format != tensor::KVFormat::kPlain || to.dtype != queries.dtype) {
    return cudaErrorInvalidValue;
  }
  return launch_append_and_rotate(from, rows, to, table, queries, stream);
}

}  // namespace quire::kernels::cuda
