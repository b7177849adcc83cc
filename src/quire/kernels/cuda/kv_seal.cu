#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/int4_place.h"
#include "quire/kernels/cuda/kv_seal.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;
using tensor::KVFormat;
using Half16 = Element<DType::kFloat16>;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRun = tensor::kInt4RunTokens, kGroup = tensor::kInt4GroupChannels;
constexpr int kMostDim = 256;
constexpr std::uint32_t kInfinityBits = 0x7f800000u;
constexpr std::uint16_t kFp16Infinity = 0x7c00;

// A head's K or V: numbers as they were computed, and the block that holds their codes.
struct Part {
  const Half* numbers;  // [tokens][dim]
  std::uint8_t* codes;  // of K or V in the target
  Half* scales;         // of the target, those of K and V
  int dim, head_dim;    // as stored, and of the model
  bool is_value;
};

// Sums over a CTA of what codes have changed, added to those of a row.
struct ErrorSums {
  double error = 0, whole = 0;

  __device__ void add(float stored, float x) {
    const double change = double{stored} - double{x};
    error += change * change;
    whole += double{x} * double{x};
  }
  __device__ void tell(KVErrorSums& to, bool is_value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      error += __shfl_xor_sync(0xffffffffu, error, lanes);
      whole += __shfl_xor_sync(0xffffffffu, whole, lanes);
    }
    if (threadIdx.x % 32 == 0) {
      atomicAdd(is_value ? &to.value_error : &to.key_error, error);
      atomicAdd(is_value ? &to.value_whole : &to.key_whole, whole);
    }
  }
};

// Returns the smallest fp16 number that is not below x >= 0; an infinity if there is none.
__device__ __forceinline__ std::uint16_t fp16_above(float x) {
  if (x <= 0) {
    return 0;
  }
  const std::uint16_t bits = Half16::round(x);
  return bits + (Half16::widen(bits) < x ? 1 : 0);
}

// Returns the largest fp16 number that is not above x; minus infinity if there is none.
__device__ __forceinline__ std::uint16_t fp16_below(float x) {
  constexpr std::uint16_t kSign = 0x8000;
  std::uint16_t bits = Half16::round(x);
  if (Half16::widen(bits) > x) {
    bits += (bits & kSign) != 0 ? 1 : -1;
  }
  return bits == kSign ? 0 : bits;
}

__device__ __forceinline__ bool is_finite_fp16(std::uint16_t bits) {
  return (bits & 0x7fff) < kFp16Infinity;
}

// An int4 group's scale and minimum as kernels/kv_codes.h gives them to numbers in [least,
// largest].
struct GroupScale {
  std::uint16_t scale = 0, minimum = 0;
  float step = 0, from = 0;
  bool held = false;

  __device__ GroupScale(float least, float largest, bool finite) {
    if (!finite) {
      return;
    }
    minimum = fp16_below(least);
    from = Half16::widen(minimum);
    scale = fp16_above(__fdiv_rn(__fsub_rn(largest, from), 15.0f));
    held = is_finite_fp16(minimum) && is_finite_fp16(scale);
    step = Half16::widen(scale);
  }
  // Returns the code of a number of the group.
  [[nodiscard]] __device__ int code(float x) const {
    constexpr float kRoundingBias = 0x1.8p23f;
    if (!held || scale == 0) {
      return 0;
    }
    const float steps = __fdiv_rn(__fsub_rn(x, from), step);
    return static_cast<int>(__fsub_rn(__fadd_rn(steps, kRoundingBias), kRoundingBias));
  }
  [[nodiscard]] __device__ float number(int code) const {
    return __fadd_rn(__fmul_rn(static_cast<float>(code), step), from);
  }
};

__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7fffffffu) < kInfinityBits;
}

// Encodes the channels of K of a run, one to a thread. Returns whether all of the thread's are
// held.
template <DType T>
__device__ bool encode_keys(const Part& part, int run, std::uint8_t (&codes)[kRun * kMostDim],
                            ErrorSums* sums) {
  Half* const scales = part.scales + run * 4 * part.dim;
  bool held = true;
  for (int d = static_cast<int>(threadIdx.x); d < part.dim; d += kThreads) {
    float x[kRun];
    float least = INFINITY, largest = -INFINITY;
    bool finite = true;
#pragma unroll
    for (int token = 0; token < kRun; ++token) {
      x[token] = Element<T>::widen(part.numbers[(run * kRun + token) * part.dim + d]);
      finite = finite && is_finite(x[token]);
      least = fminf(least, x[token]);
      largest = fmaxf(largest, x[token]);
    }
    const GroupScale scale(least, largest, finite);
    held = held && scale.held;
#pragma unroll
    for (int token = 0; token < kRun; ++token) {
      const int code = scale.code(x[token]);
      codes[token * part.dim + d] = static_cast<std::uint8_t>(code);
      if (sums != nullptr && d < part.head_dim) {
        sums->add(scale.number(code), x[token]);
      }
    }
    scales[d] = scale.scale;
    scales[part.dim + d] = scale.minimum;
  }
  return held;
}

// Encodes the groups of V of a run, one after the other to a warp, a channel to a lane. Channels
// behind the model's head size have code 0.
template <DType T>
__device__ bool encode_values(const Part& part, int run, std::uint8_t (&codes)[kRun * kMostDim],
                              ErrorSums* sums) {
  Half* const scales = part.scales + run * 4 * part.dim + 2 * part.dim;
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = part.dim / kGroup;
  bool held = true;
  for (int at = static_cast<int>(threadIdx.x) / 32; at < kRun * groups; at += kWarps) {
    const int token = at / groups, group = at % groups, d = group * kGroup + lane;
    const bool there = d < part.head_dim;
    const float x = Element<T>::widen(part.numbers[(run * kRun + token) * part.dim + d]);
    const bool finite = __all_sync(0xffffffffu, !there || is_finite(x));
    float least = there ? x : INFINITY, largest = there ? x : -INFINITY;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      least = fminf(least, __shfl_xor_sync(0xffffffffu, least, lanes));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    }
    const GroupScale scale(least, largest, finite);
    held = held && scale.held;
    const int code = there ? scale.code(x) : 0;
    codes[token * part.dim + d] = static_cast<std::uint8_t>(code);
    if (sums != nullptr && there) {
      sums->add(scale.number(code), x);
    }
    if (lane == 0) {
      scales[group * 2 * kRun + token] = scale.scale;
      scales[group * 2 * kRun + kRun + token] = scale.minimum;
    }
  }
  return held;
}

// Seals K or V of a run of a head block as int4. Returns whether it is held.
template <DType T>
__device__ bool seal_int4(const Part& part, int run, ErrorSums* sums) {
  __shared__ std::uint8_t codes[kRun * kMostDim];
  const bool held = part.is_value ? encode_values<T>(part, run, codes, sums)
                                  : encode_keys<T>(part, run, codes, sums);
  const bool refused = __syncthreads_or(!held);
  auto* const words = reinterpret_cast<std::uint32_t*>(part.codes);
  const int of_token = part.dim / kInt4WordCodes;
  for (int i = static_cast<int>(threadIdx.x); i < kRun * of_token; i += kThreads) {
    const int token = i / of_token, word = i % of_token;
    std::uint32_t packed = 0;
#pragma unroll
    for (int c = 0; c < kInt4WordCodes; ++c) {
      packed |= std::uint32_t{codes[token * part.dim + word * kInt4WordCodes + c]}
                << 4 * tensor::code_place(kInt4WordCodes, c);
    }
    words[int4_word(part.dim, run * kRun + token, word)] = refused ? 0 : packed;
  }
  if (refused) {
    Half* const scales = part.scales + run * 4 * part.dim + (part.is_value ? 2 * part.dim : 0);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * part.dim; i += kThreads) {
      scales[i] = 0;
    }
  }
  return !refused;
}

// Returns the largest |x| of the CTA's threads, as bits.
__device__ __forceinline__ std::uint32_t largest_of_cta(std::uint32_t mine) {
  __shared__ std::uint32_t of_warps[kWarps];
  mine = __reduce_max_sync(0xffffffffu, mine);
  if (threadIdx.x % 32 == 0) {
    of_warps[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  std::uint32_t largest = 0;
#pragma unroll
  for (const std::uint32_t one : of_warps) {
    largest = max(largest, one);
  }
  return largest;
}

// Seals K or V of a head block as fp8. Returns whether it is held.
template <DType T>
__device__ bool seal_fp8(const Part& part, int tokens, ErrorSums* sums) {
  const int all = tokens * part.dim, slots = (tokens + 3) / 4 * 4;
  std::uint32_t mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kThreads) {
    mine = max(mine, __float_as_uint(Element<T>::widen(part.numbers[i])) & 0x7fffffffu);
  }
  const std::uint32_t largest = largest_of_cta(mine);
  constexpr float kLeastScale = 0x1p-126f;
  const float least = __fdiv_rn(__uint_as_float(largest), tensor::kLargestE4m3);
  const bool held = largest < kInfinityBits && is_finite(__fmul_rn(least, tensor::kLargestE4m3));
  const float scale = held && least >= kLeastScale ? least : 0.0f;
  auto* const words = reinterpret_cast<std::uint32_t*>(part.codes);
  for (int i = static_cast<int>(threadIdx.x); i < slots * part.dim / 4; i += kThreads) {
    std::uint32_t packed = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int at = 4 * i + c;
      if (at < all) {
        const float x = Element<T>::widen(part.numbers[at]);
        const std::uint8_t code = scale == 0 ? 0 : tensor::float_to_e4m3(__fdiv_rn(x, scale));
        packed |= std::uint32_t{code} << 8 * c;
        if (sums != nullptr && at % part.dim < part.head_dim) {
          sums->add(__fmul_rn(tensor::e4m3_to_float(code), scale), x);
        }
      }
    }
    words[i] = packed;
  }
  // The scales of K and V, and zeros up to the end of the line.
  auto* const scales = reinterpret_cast<float*>(part.scales);
  constexpr int kScales = 2, kLine = 16;
  if (threadIdx.x == 0) {
    scales[part.is_value ? 1 : 0] = scale;
  } else if (!part.is_value && threadIdx.x >= kScales && threadIdx.x < kLine) {
    scales[threadIdx.x] = 0;
  }
  return held;
}

// Seals one head of a block, K or V: of fp8 all of it, of int4 one run.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    seal_kernel(const __grid_constant__ SealViews views, const SealedBlock* blocks,
                const SealResults results) {
  begin_kernel();
  const SealedBlock block = blocks[blockIdx.x];
  if (block.from < 0) {
    return;
  }
  const KVLayer& from = views.of[block.from_format];
  const KVLayer& to = views.of[block.to_format];
  const int head = static_cast<int>(blockIdx.y), run = static_cast<int>(blockIdx.z) / 2;
  const bool is_value = blockIdx.z % 2 != 0;
  if (to.format == KVFormat::kFp8 && run > 0) {
    return;
  }
  Half* const target = to.data + head * to.head_stride + block.to * to.block_stride;
  const Part part = {
      .numbers = from.data + head * from.head_stride + block.from * from.block_stride +
                 (is_value ? from.v_offset : 0),
      .codes = reinterpret_cast<std::uint8_t*>(target + (is_value ? to.v_offset : 0)),
      .scales = target + to.scale_offset,
      .dim = to.stored_dim,
      .head_dim = views.head_dim,
      .is_value = is_value};
  ErrorSums sums;
  ErrorSums* const wanted = results.errors != nullptr ? &sums : nullptr;
  const bool held = to.format == KVFormat::kFp8 ? seal_fp8<T>(part, views.block_tokens, wanted)
                                                : seal_int4<T>(part, run, wanted);
  if (!held) {
    if (threadIdx.x == 0 && results.refused != nullptr) {
      results.refused[block.last_row] = 1;
    }
  } else if (results.errors != nullptr) {
    sums.tell(results.errors[block.last_row], is_value);
  }
}

}  // namespace

cudaError_t seal_blocks(const SealViews& views, const SealedBlock* blocks, std::int32_t count,
                        const SealResults& results, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(views.kv_heads),
                  static_cast<unsigned>(2 * std::max(views.block_tokens / kRun, 1)));
  return launch_for_dtype(views.of[0].dtype, [&]<DType T>() {
    return launch_early(seal_kernel<T>, {grid, kThreads}, stream, views, blocks, results);
  });
}

}  // namespace quire::kernels::cuda
