// Y = X W^T (+ bias) for packed weights: GEMV, small batches and prefill through one call.
//
// Row invariance: for a given instruction set, the bits of Y[row] depend on X[row] and W only,
// never on the number of rows, the row's place or the number of threads.
#pragma once

#include <cstddef>
#include <span>

#include "quire/kernels/context.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

// Reusable storage for one caller; grows as needed, so steady-state calls allocate nothing.
class LinearScratch;

// Rounds or quantises x [rows, x_stride >= depth] into `packed` (reshaped to rows x depth in the
// row format of `format`).
void pack_rows(const Context& context, WeightFormat format, std::span<const float> x,
               std::ptrdiff_t x_stride, std::int64_t rows, std::int64_t depth, PackedRows& packed);

// What happens to a finished output row, in this order: out = product + bias[column]; then, if
// `accumulate`, out is added to what `out` held before (residual).
struct Epilogue {
  std::span<const float> bias;  // [columns] or empty
  bool accumulate = false;
};

// out [rows, out_stride >= columns]; all columns overwritten (or added to). packed must have been
// filled for weights.format() and weights.depth().
void linear(const Context& context, const PackedWeights& weights, const PackedRows& packed,
            std::span<float> out, std::ptrdiff_t out_stride, const Epilogue& epilogue,
            LinearScratch& scratch);

}  // namespace quire::kernels
