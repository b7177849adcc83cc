// Element types of dense buffers, and conversions of the 16-bit floats. Conversions keep NaN,
// infinities and subnormals.
//
// Thread rule: free functions without state; any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace quire::tensor {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

[[nodiscard]] constexpr int dtype_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

[[nodiscard]] constexpr const char* dtype_name(DType dtype) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16"};
  return kNames[static_cast<std::uint8_t>(dtype)];
}

[[nodiscard]] inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even.
[[nodiscard]] std::uint16_t float_to_bf16(float value);
[[nodiscard]] float fp16_to_float(std::uint16_t bits);
// Rounds to nearest, ties to even.
[[nodiscard]] std::uint16_t float_to_fp16(float value);

}  // namespace quire::tensor
