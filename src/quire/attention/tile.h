// Sizes and plain structs that the planner and the kernels share. No code: kernel files include it.
#pragma once

#include <cstdint>
#include <limits>

namespace quire::attention {

inline constexpr int kPieceTokens = 256;  // canonical piece: changing it changes bits
inline constexpr int kUnitTokens = 32;    // tokens that kernels take at once; changing it too
inline constexpr int kStripRows = 32;     // stacked (row, head) pairs that kernels take at once
inline constexpr int kMaxStrips = 4;      // most strips of one work item
inline constexpr int kItemRows = kStripRows * kMaxStrips;
inline constexpr int kMaxHeadDim = 576;
// The maximum of a row that sees no token.
inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Tokens [begin, end) of a run.
struct TokenRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

}  // namespace quire::attention
