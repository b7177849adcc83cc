// KVFormat: how the numbers of KV are stored, beside the type that they are computed in.
//
// Thread rule: free functions without state; any thread.
#pragma once

#include <cstdint>

#include "quire/tensor/dtype.h"

namespace quire::tensor {

// kPlain: numbers of the compute type. kInt8: codes of 8 bits, symmetric, written at append. K and
// V have an fp16 scale for each (token, KV head). kFp8: e4m3, with one fp32 scale for each (block,
// KV head), of K and of V. kInt4: codes of 4 bits with an fp16 scale and an fp16 minimum. K has
// them for each channel of a run of 32 tokens, V for each token and group of 32 channels.
// kernels/kv_codes.h has the arithmetic.
enum class KVFormat : std::uint8_t { kPlain, kInt8, kFp8, kInt4 };

inline constexpr int kInt4RunTokens = 32;      // tokens of a channel of K that share a scale
inline constexpr int kInt4GroupChannels = 32;  // channels of a token's V that share a scale

// Returns whether blocks of the format are written whole, once all their tokens are there.
[[nodiscard]] constexpr bool is_written_by_block(KVFormat format) {
  return format == KVFormat::kFp8 || format == KVFormat::kInt4;
}

// Returns the bits of one number, without scales.
[[nodiscard]] constexpr int kv_value_bits(KVFormat format, DType dtype) {
  switch (format) {
    case KVFormat::kPlain:
      break;
    case KVFormat::kInt8:
    case KVFormat::kFp8:
      return 8;
    case KVFormat::kInt4:
      return 4;
  }
  return 8 * dtype_bytes(dtype);
}

// Returns the bytes of one number, without scales. Formats of less than 8 bits have no such bytes.
[[nodiscard]] constexpr int kv_value_bytes(KVFormat format, DType dtype) {
  return kv_value_bits(format, dtype) / 8;
}

// Returns the name that users give as kv_dtype.
[[nodiscard]] constexpr const char* kv_format_name(KVFormat format, DType dtype) {
  constexpr const char* kNames[] = {nullptr, "int8", "fp8", "int4"};
  return format == KVFormat::kPlain ? dtype_name(dtype) : kNames[static_cast<std::uint8_t>(format)];
}

// Returns how many numbers a word of 4 bytes holds: dimensions of a token's K, or tokens of a
// dimension of V.
[[nodiscard]] constexpr int kv_pack(KVFormat format, DType dtype) {
  return 32 / kv_value_bits(format, dtype);
}

// Returns the bytes of the scales and minimums of a head block of `tokens` slots and channels of
// which it has `head_dim`, padding included.
[[nodiscard]] constexpr std::int64_t kv_scales_bytes(KVFormat format, int head_dim, int tokens) {
  constexpr int kLineBytes = 64;
  switch (format) {
    case KVFormat::kPlain:
      break;
    case KVFormat::kInt8:
      return std::int64_t{2} * 2 * tokens;
    case KVFormat::kFp8:
      return kLineBytes;  // two numbers, and blocks begin at lines of a cache
    case KVFormat::kInt4:
      return std::int64_t{8} * head_dim * tokens / kInt4RunTokens;
  }
  return 0;
}

// Returns the place of code `index` in a word of `pack` codes, counted in codes from the lowest
// bits: 0, 2, 1, 3 of four. Codes 2 i and 2 i + 1 lie in the same bits of both halves of a word. So
// one shift brings a pair to the places of a pair of 16-bit numbers.
[[nodiscard]] constexpr int code_place(int pack, int index) {
  return index % 2 * (pack / 2) + index / 2;
}
[[nodiscard]] constexpr int int8_place(int index) { return code_place(4, index); }

}  // namespace quire::tensor
