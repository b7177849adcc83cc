// Codes of int8 KV as numbers for the tensor core, and their scales as factors of scores and
// weights. Codes become fp16, which holds each exactly. One multiplication and one addition make an
// exponent of 2 of a product with a key. The addition brings the logarithm of the value's scale, so
// that weights have that scale in them. The largest weight is near 1 whatever the scales are.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

using tensor::KVFormat;

// Bytes of a stored number of a format.
template <KVFormat F>
inline constexpr int kNumberBytes = F == KVFormat::kPlain ? 2 : 1;

// Returns four codes, in bytes, as numbers from 0 to 255.
__device__ __forceinline__ std::uint32_t raise_codes(std::uint32_t codes) {
  return codes ^ 0x80808080u;
}
// The two bytes of a word that widen_codes makes numbers of.
enum CodePair : std::uint32_t { kLow = 0x4140, kHigh = 0x4342, kEven = 0x4240, kOdd = 0x4341 };
// Returns two raised codes as fp16: behind 0x64 a byte means 1024 more than it is.
template <CodePair P>
__device__ __forceinline__ std::uint32_t widen_codes(std::uint32_t raised) {
  const std::uint32_t above = __byte_perm(raised, 0x64646464u, P);
  constexpr std::uint32_t kRaise = 0x64806480u;  // 1024 + 128, twice
  const __half2 codes = __hsub2(*reinterpret_cast<const __half2*>(&above),
                                *reinterpret_cast<const __half2*>(&kRaise));
  return *reinterpret_cast<const std::uint32_t*>(&codes);
}
// Returns eight codes as fp16, in their order.
__device__ __forceinline__ uint4 widen_8(std::uint32_t first, std::uint32_t second) {
  const std::uint32_t a = raise_codes(first), b = raise_codes(second);
  return {widen_codes<kLow>(a), widen_codes<kHigh>(a), widen_codes<kLow>(b), widen_codes<kHigh>(b)};
}

// The scales of a token as softmax takes them. Its exponent is score * `score` + `exponent`; a
// weight times `inverse` is the probability.
struct TokenScale {
  float score, exponent, inverse;
};
// Makes a TokenScale of stored scales, which are fp16. Without a scale all codes are 0, and any
// scale does. A slot that nobody sees may hold anything.
__device__ __forceinline__ TokenScale token_scale(std::uint16_t key, std::uint16_t value,
                                                  float scale_log2) {
  using Half = kernels::cuda::Element<tensor::DType::kFloat16>;
  const float stored = Half::widen(value);
  const float used = stored > 0 && stored < INFINITY ? stored : 1.0f;
  return {Half::widen(key) * scale_log2, __log2f(used), __fdividef(1.0f, used)};
}

}  // namespace quire::attention::cuda
