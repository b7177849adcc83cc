// Codes of KV as numbers for the tensor core, and their scales as factors of scores and weights.
// Codes become fp16. It holds those of int8 and fp8 exactly, and their scales stay outside. One
// multiplication and one addition make an exponent of 2 of a product with a key. The addition
// brings the logarithm of the value's scale, so that weights have that scale in them. The largest
// weight is near 1 whatever the scales are. Codes of int4 become the numbers that they stand for,
// rounded to fp16 once.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/int4_place.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

using tensor::KVFormat;

__device__ __forceinline__ __half2 half2_of(std::uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ std::uint32_t bits_of(__half2 pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Bits of a stored number of a format. Plain ones have 16, whatever their type is.
template <KVFormat F>
inline constexpr int kNumberBits = tensor::kv_value_bits(F, tensor::DType::kBFloat16);

// Tells whether each token has a TokenScale. Codes of such formats are bytes.
template <KVFormat F>
inline constexpr bool kTokenScales = F == KVFormat::kInt8 || F == KVFormat::kFp8;

// The two bytes of a word that widen_codes makes numbers of.
enum CodePair : std::uint32_t { kLow = 0x4140, kHigh = 0x4342, kEven = 0x4240, kOdd = 0x4341 };

// Codes of one byte. raise() changes a word of four once, for widen() to make two fp16 numbers of.
template <KVFormat F>
struct ByteCodes;

template <>
struct ByteCodes<KVFormat::kInt8> {
  // Returns four codes as numbers from 0 to 255.
  __device__ __forceinline__ static std::uint32_t raise(std::uint32_t codes) {
    return codes ^ 0x80808080u;
  }
  // Behind 0x64 a byte means 1024 more than it is.
  template <CodePair P>
  __device__ __forceinline__ static std::uint32_t widen(std::uint32_t raised) {
    const std::uint32_t above = __byte_perm(raised, 0x64646464u, P);
    constexpr std::uint32_t kRaise = 0x64806480u;  // 1024 + 128, twice
    return bits_of(__hsub2(half2_of(above), half2_of(kRaise)));
  }
};

template <>
struct ByteCodes<KVFormat::kFp8> {
  __device__ __forceinline__ static std::uint32_t raise(std::uint32_t codes) { return codes; }
  template <CodePair P>
  __device__ __forceinline__ static std::uint32_t widen(std::uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    // Takes neighbouring bytes. The compiler permutes a word once for both of its pairs.
    const std::uint32_t word = P == kLow || P == kHigh ? codes : __byte_perm(codes, 0, 0x3120);
    std::uint32_t numbers;
    if constexpr (P == kLow || P == kEven) {
      asm("{.reg .b16 low, high;\n"
          "mov.b32 {low, high}, %1;\n"
          "cvt.rn.f16x2.e4m3x2 %0, low;}"
          : "=r"(numbers)
          : "r"(word));
    } else {
      asm("{.reg .b16 low, high;\n"
          "mov.b32 {low, high}, %1;\n"
          "cvt.rn.f16x2.e4m3x2 %0, high;}"
          : "=r"(numbers)
          : "r"(word));
    }
    return numbers;
#else
    // An fp16 number with these bits behind its sign is 2^8 times smaller, subnormal ones too.
    constexpr std::uint32_t kPlace = P == kLow    ? 0x1404
                                     : P == kHigh ? 0x3424
                                     : P == kEven ? 0x2404
                                                  : 0x3414;
    const std::uint32_t high = __byte_perm(codes, 0, kPlace);
    const std::uint32_t small = (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
    constexpr std::uint32_t kFactor = 0x5c005c00u;  // 2^8, twice
    return bits_of(__hmul2(half2_of(small), half2_of(kFactor)));
#endif
  }
};

// Returns eight codes of a byte as fp16, in their order.
template <KVFormat F>
__device__ __forceinline__ uint4 widen_8(std::uint32_t first, std::uint32_t second) {
  using Codes = ByteCodes<F>;
  const std::uint32_t a = Codes::raise(first), b = Codes::raise(second);
  return {Codes::template widen<kLow>(a), Codes::template widen<kHigh>(a),
          Codes::template widen<kLow>(b), Codes::template widen<kHigh>(b)};
}

// The scales of a token as softmax takes them. Its exponent is score * `score` + `exponent`; a
// weight times `inverse` is the probability.
struct TokenScale {
  float score, exponent, inverse;
};
// Makes a TokenScale of stored scales. Without a scale all codes are 0, and any scale does. A slot
// that nobody sees may hold anything. Scales of V below 2^-100 count as that, so that `inverse` and
// sums of it are finite.
__device__ __forceinline__ TokenScale token_scale(float key, float value, float scale_log2) {
  const float used = value > 0 && value < INFINITY ? fmaxf(value, 0x1p-100f) : 1.0f;
  return {key * scale_log2, __log2f(used), __fdividef(1.0f, used)};
}

// The scales of a token as they are stored, on their way.
template <KVFormat F>
struct StoredScale {
  std::uint16_t key, value;  // fp16

  __device__ void load(const std::uint16_t* block, const DeviceKV& kv, int slot) {
    key = __ldg(block + kv.scale_offset + slot);
    value = __ldg(block + kv.v_scale_offset + slot);
  }
  [[nodiscard]] __device__ TokenScale with(float scale_log2) const {
    using Half = kernels::cuda::Element<tensor::DType::kFloat16>;
    return token_scale(Half::widen(key), Half::widen(value), scale_log2);
  }
};
template <>
struct StoredScale<KVFormat::kFp8> {
  float2 of_block;  // of keys and of values

  __device__ void load(const std::uint16_t* block, const DeviceKV& kv, int /*slot*/) {
    of_block = __ldg(reinterpret_cast<const float2*>(block + kv.scale_offset));
  }
  [[nodiscard]] __device__ TokenScale with(float scale_log2) const {
    return token_scale(of_block.x, of_block.y, scale_log2);
  }
};

// Returns (bits & kMask) | value.
template <std::uint32_t kMask>
__device__ __forceinline__ std::uint32_t masked_or(std::uint32_t bits, std::uint32_t value) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(result) : "r"(bits), "n"(kMask), "r"(value));
  return result;
}

// Returns codes I of both halves of a word of eight, channels 2 I and 2 I + 1, as fp16. `shifted`
// is the word, moved down by 8 bits for I >= 2.
template <int I>
__device__ __forceinline__ __half2 int4_codes(std::uint32_t shifted) {
  // Behind 0x64 code c means 1024 + c, or 1024 + 16 c where it lies four bits higher. One
  // instruction masks and sets; the compiler takes two.
  constexpr std::uint32_t kMask = I % 2 == 0 ? 0x000f000fu : 0x00f000f0u;
  const std::uint32_t above = masked_or<kMask>(shifted, 0x64006400u);
  if constexpr (I % 2 == 0) {
    constexpr std::uint32_t kRaise = 0x64006400u;
    return __hsub2(half2_of(above), half2_of(kRaise));
  } else {
    constexpr std::uint32_t kSixteenth = 0x2c002c00u, kRaise = 0xd400d400u;  // -64, twice
    return __hfma2(half2_of(above), half2_of(kSixteenth), half2_of(kRaise));
  }
}

// Scales and minimums of two numbers.
struct Int4Pair {
  __half2 scale, minimum;

  // Prepares stored ones. fp16 ends at 65504: the scales of a group that passes 65100 shrink so
  // that it ends there.
  __device__ __forceinline__ Int4Pair(std::uint32_t scales, std::uint32_t minimums)
      : minimum(half2_of(minimums)) {
    constexpr std::uint32_t kShare = 0xac44ac44u, kMost = 0x6c3d6c3du;  // -1/15; 4340
    scale = __hmin2(half2_of(scales), __hfma2(minimum, half2_of(kShare), half2_of(kMost)));
  }
  // Returns the numbers of two codes.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t numbers(__half2 codes) const {
    return bits_of(__hfma2(codes, scale, minimum));
  }
};

// Returns a word of a number, twice.
__device__ __forceinline__ std::uint32_t twice(std::uint16_t x) { return x * 0x10001u; }

// Returns the eight numbers of a word, whose pairs have these scales.
__device__ __forceinline__ uint4 widen_int4(std::uint32_t word, const Int4Pair (&pair)[4]) {
  const std::uint32_t shifted = word >> 8;
  return {pair[0].numbers(int4_codes<0>(word)), pair[1].numbers(int4_codes<1>(word)),
          pair[2].numbers(int4_codes<2>(shifted)), pair[3].numbers(int4_codes<3>(shifted))};
}

// The scales of a run of 32 tokens, in words of 16 bits from its first one on. Minimums lie behind
// the scales of a channel's 32 tokens, or of all channels.
struct Int4Scales {
  __device__ __forceinline__ static constexpr int words(int dim) { return 4 * dim; }
  __device__ __forceinline__ static constexpr int key(int channel) { return channel; }
  __device__ __forceinline__ static constexpr int key_minimum(int dim, int channel) {
    return dim + channel;
  }
  __device__ __forceinline__ static constexpr int value(int dim, int group, int token) {
    return 2 * dim + 2 * tensor::kInt4RunTokens * group + token;
  }
  __device__ __forceinline__ static constexpr int value_minimum(int dim, int group, int token) {
    return value(dim, group, token) + tensor::kInt4RunTokens;
  }
};

}  // namespace quire::attention::cuda
