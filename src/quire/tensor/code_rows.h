// CodeRows: rows of a quantised matrix on their way from a file into packed weights.
#pragma once

#include <cstdint>
#include <span>

namespace quire::tensor {

inline constexpr int kCodeGroup = 32;  // neighbours in a row that share a scale

// Room for `rows` rows of `depth` values, a multiple of kCodeGroup; borrowed. A weight is scale *
// (code - offset of the format) or, with minimums, scale * code + minimum.
struct CodeRows {
  std::span<std::uint8_t> codes;      // [rows][depth]
  std::span<std::uint16_t> scales;    // [rows][depth / kCodeGroup], fp16
  std::span<std::uint16_t> minimums;  // the same, fp16; left alone by encodings that have none
};

}  // namespace quire::tensor
