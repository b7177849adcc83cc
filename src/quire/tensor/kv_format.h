// KVFormat: how the numbers of KV are stored, beside the type that they are computed in.
//
// Thread rule: free functions without state; any thread.
#pragma once

#include <cstdint>

#include "quire/tensor/dtype.h"

namespace quire::tensor {

// kPlain: numbers of the compute type. kInt8: codes of 8 bits, symmetric, written at append. K and
// V have an fp16 scale for each (token, KV head). kernels/kv_codes.h has the arithmetic.
enum class KVFormat : std::uint8_t { kPlain, kInt8 };

// Returns the bytes of one number, without scales.
[[nodiscard]] constexpr int kv_value_bytes(KVFormat format, DType dtype) {
  return format == KVFormat::kInt8 ? 1 : dtype_bytes(dtype);
}

// Returns the name that users give as kv_dtype.
[[nodiscard]] constexpr const char* kv_format_name(KVFormat format, DType dtype) {
  return format == KVFormat::kInt8 ? "int8" : dtype_name(dtype);
}

// Returns how many tokens have their codes of one dimension of V in a word of 4 bytes.
[[nodiscard]] constexpr int kv_pack(KVFormat format, DType dtype) {
  return 4 / kv_value_bytes(format, dtype);
}

// Returns the byte in which value `index` of four lies in a word of int8 codes: 0, 2, 1, 3. So the
// even bytes of a word are its first two values and the odd bytes its last two.
[[nodiscard]] constexpr int int8_place(int index) {
  return index == 1 ? 2 : index == 2 ? 1 : index;
}

}  // namespace quire::tensor
