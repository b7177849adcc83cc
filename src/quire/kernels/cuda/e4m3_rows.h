// Rows of activations as 8-bit floats, e4m3 of "FP8 Formats for Deep Learning" (Micikevicius et
// al., 2022). Each row has a scale of its own, its largest magnitude / 448. A code is the one
// nearest to its value times 448 / largest magnitude. Codes of a row that is not finite are all
// NaN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {

// Every output of a product with e4m3 sums its inputs in as many slices, which are added in order.
inline constexpr int kCodedSlices = 4;
// Returns the first unit of a slice, and for kCodedSlices the number of units.
[[nodiscard]] constexpr int coded_slice_start(int units, int slice) {
  return units * slice / kCodedSlices;
}

// Where codes of rows lie, as right operands of warpgroups: [blocks of rows][steps][vectors of a
// unit][columns]. Vectors 2g and 2g + 1 have group g. Word t of the first has inputs 8t to 8t + 3,
// of the second 8t + 4 to 8t + 7. Their bytes are in the order 0, 2, 1, 3, as those of weights are.
// So a lane's words of weights are left operands as they are.
//
// Steps are units, and columns rows. Where it is sliced, a step is a unit of each slice, and
// columns are [slices][rows]. Slices may lack the last unit, whose codes are zeros then.
struct CodedRows {
  std::int64_t inputs = 0;
  int block_rows = 0;
  bool sliced = false;

  [[nodiscard]] constexpr int units() const { return static_cast<int>(units_of(inputs)); }
  [[nodiscard]] constexpr int steps() const {
    return sliced ? (units() + kCodedSlices - 1) / kCodedSlices : units();
  }
  [[nodiscard]] constexpr int columns() const {
    return sliced ? kCodedSlices * block_rows : block_rows;
  }
  [[nodiscard]] constexpr int step_bytes() const { return kUnitInputs * columns(); }
  [[nodiscard]] constexpr std::int64_t blocks(std::int64_t rows) const {
    return (rows + block_rows - 1) / block_rows;
  }
  [[nodiscard]] constexpr std::int64_t block_bytes() const {
    return std::int64_t{steps()} * step_bytes();
  }
  // Returns the byte of a block at which a row has the first vector of a group. The second one lies
  // columns() vectors behind it.
  [[nodiscard]] constexpr int place(int row, int slice, int step, int group) const {
    return step * step_bytes() +
           (2 * group * columns() + (sliced ? slice * block_rows : 0) + row) * kVectorBytes;
  }
};

// Returns the bytes of the scales of so many rows, behind which their codes begin.
[[nodiscard]] constexpr std::int64_t row_scale_bytes(std::int64_t rows) {
  constexpr std::int64_t kAlignment = 128;
  return (rows * 4 + kAlignment - 1) / kAlignment * kAlignment;
}

// x is [rows, inputs] of `dtype`, at a multiple of 16 bytes; inputs are a multiple of 8.
struct CodeRowsParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  const Half* x = nullptr;
  std::int64_t rows = 0;
  CodedRows to;
  std::byte* out = nullptr;  // row_scale_bytes(), then blocks
};
// Writes scales and codes. Places of the last block that no row has stay as they are.
[[nodiscard]] cudaError_t code_rows(const CodeRowsParams& params, cudaStream_t stream);

// Writes each row's scale to `scales`, and its codes to `out` [rows, inputs] as numbers of `dtype`,
// which holds them exactly. Without `scales` it writes codes times scale, rounded to `dtype`.
struct RoundRowsParams {
  tensor::DType dtype = tensor::DType::kBFloat16;
  const Half* x = nullptr;
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  Half* out = nullptr;
  float* scales = nullptr;
};
[[nodiscard]] cudaError_t round_rows(const RoundRowsParams& params, cudaStream_t stream);

}  // namespace quire::kernels::cuda
