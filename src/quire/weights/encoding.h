// Encoding: the form of a tensor's values in its file.
#pragma once

#include <cstdint>

namespace quire::weights {

// Names the form of values. The Q encodings are ggml's code blocks (code_block.h).
// NOLINTBEGIN(readability-identifier-naming): ggml's names hold underscores
enum class Encoding : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ4_NL,
  kIQ4_XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0,
  // Matrices of Hugging Face folders in several tensors (quantised_tensor.h).
  kFP8,
  kMXFP4Blocks,
  kPacked4,
  kPacked8,
  kINT8,
  kAWQ,
  kGPTQ4,
  kGPTQ8,
};
inline constexpr int kEncodings = 36;
inline constexpr int kFileEncodings = 28;  // those that one tensor of a file may have
// NOLINTEND(readability-identifier-naming)
[[nodiscard]] const char* encoding_name(Encoding encoding);
// Returns the values of one code block (1, 32, 64, 128 or 256).
[[nodiscard]] int code_block_values(Encoding encoding);
// Returns the bytes of one code block.
[[nodiscard]] int code_block_bytes(Encoding encoding);

// Says how a code becomes a weight when codes are taken out as they lie.
enum class CodeKind : std::uint8_t {
  kNone,         // read_codes does not apply
  kEight,        // weight = scale * (code - 128)
  kFour,         // weight = scale * (code - 8)
  kFourMinimum,  // weight = scale * code + minimum
  kTable,        // weight = wide scale * table[code]
  kTableHalves,  // weight = wide scale * multiple of the half * table[code]
  kTwoMinimum,   // weight = scale * multiple * code + minimum * multiple; codes below 4
};
// Returns how codes of one tensor become weights. A matrix in several tensors says it itself.
[[nodiscard]] CodeKind code_kind(Encoding encoding);

}  // namespace quire::weights
