// CodeBlockReader: how one quantised block of ggml becomes fp32 values, or codes with scales.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quire/tensor/code_rows.h"

namespace quire::weights {

// Room for a block as tensor::CodeRows has it for rows. Encodings fill what their CodeKind names.
struct BlockCodes {
  std::uint8_t* codes;
  std::uint16_t* scales;  // for every 32 codes, as the next two
  std::uint16_t* minimums;
  float* wide_scales;
  std::int8_t* multiples;  // for every 16
  std::int8_t* minimum_multiples;
};

// Reads the code blocks of one encoding.
struct CodeBlockReader {
  // Gives a block's values.
  void (*decode)(const std::byte* block, float* out) = nullptr;
  // Gives a block's codes and scales; null for encodings of CodeKind::kNone.
  void (*codes)(const std::byte* block, const BlockCodes& out) = nullptr;
  // The numbers that codes of 4 bits name; null for other codes.
  const tensor::CodeTable* table = nullptr;
};

// Loads a value that need not be aligned, as those of files are not.
template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Equals tensor::fp16_to_float, but is free of branches and calls, so that it vectorises. For
// subnormals it builds 0.5 + fraction * 2^-24 from bits and takes 0.5 off, which is exact. Scaling
// a subnormal float would be wrong in threads that flush those to zero.
inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(0x3f000000u | magnitude) - 0.5f);
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const std::uint32_t infinite_or_nan = (magnitude << 13) | 0x7f800000u;
  const std::uint32_t small_mask = 0u - static_cast<std::uint32_t>(magnitude < 0x400u);
  const std::uint32_t large_mask = 0u - static_cast<std::uint32_t>(magnitude >= 0x7c00u);
  const std::uint32_t value = (subnormal & small_mask) | (infinite_or_nan & large_mask) |
                              (normal & ~(small_mask | large_mask));
  return std::bit_cast<float>(sign | value);
}

}  // namespace quire::weights
