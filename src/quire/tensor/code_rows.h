// CodeRows: rows of a quantised matrix on their way from a file into packed weights.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace quire::tensor {

inline constexpr int kCodeGroup = 32;  // neighbours in a row that share a scale

// The weights that codes of 4 bits name, before they are scaled.
using CodeTable = std::array<std::int8_t, 16>;

// Room for `rows` rows of `depth` values, a multiple of kCodeGroup; borrowed. A weight is scale *
// (code - offset of the format) or, with minimums, scale * code + minimum. Codes with a table name
// weights there, and scales of theirs are fp32. Where halves of groups differ, scales and minimums
// are multiplied by an integer for each half. Parts that an encoding does not have are left alone,
// and may be empty.
struct CodeRows {
  std::span<std::uint8_t> codes;      // [rows][depth]
  std::span<std::uint16_t> scales;    // [rows][depth / kCodeGroup], fp16
  std::span<std::uint16_t> minimums;  // the same, fp16
  std::span<float> wide_scales;       // instead of `scales`
  std::span<std::int8_t> multiples;   // [rows][depth / kCodeGroup * 2], of scales
  std::span<std::int8_t> minimum_multiples;
};

}  // namespace quire::tensor
