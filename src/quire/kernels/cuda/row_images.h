// Images of rows: the right operands of the kernels of many rows, arranged for them, a unit of a
// block of rows in one piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/device_codes.h"

namespace quire::kernels::cuda {

inline constexpr int kWideColumns = 8;    // rows of activations that lie together in an image
inline constexpr int kWideOutputs = 128;  // of a block

// An image has 16 vectors of 16 bytes of each row: [vectors][rows]. Vector v has inputs 8t + 2 (v %
// 4) and the next one, t in 0..3, of group v / 4. The swizzle of 128 bytes was not faster.
inline constexpr int kImageAlignment = 128;
// Returns the byte of an image of so many rows at which a vector of a row begins.
[[nodiscard]] constexpr int image_place(int rows, int row, int vector) {
  return (vector * rows + row) * kVectorBytes;
}
// Returns the bytes of a unit of so many rows: 16-bit inputs, and sums of steps for minimums.
[[nodiscard]] constexpr int wide_image_bytes(CodeFormat format, int rows) {
  const int bytes = rows * (kUnitInputs * 2 + (has_minimum(format) ? unit_steps(format) * 4 : 0));
  return (bytes + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
}

struct WideProduct {
  CodedProduct product;
  const std::byte* images = nullptr;  // [blocks of rows][units][wide_image_bytes()]
  int block_rows = 0;                 // 32, 64 or 128
  bool split = false;                 // the slices of an output are blocks; always for 32 rows
  // Blocks of rows are groups, each with the matrix of its expert. The product's weights are those
  // of the first expert, and its rows are places. Null: there is one matrix.
  const ExpertRows* groups = nullptr;
  std::int64_t num_groups = 0;
};

}  // namespace quire::kernels::cuda
