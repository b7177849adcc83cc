// Epilogue, GatedRows: what happens to the results of a product.
#pragma once

#include <span>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/weight_format.h"

namespace quire::kernels {

// Work on a finished output row: first out = product + bias[column]; then, if `accumulate`, the
// former `out` is added (residual).
struct Epilogue {
  std::span<const float> bias;  // [columns] or empty
  bool accumulate = false;
};

// Rows that are gated and packed for a product with weights of format `next`.
struct GatedRows {
  PackedRows& rows;
  WeightFormat next = WeightFormat::kF32;
  Activation activation = Activation::kSilu;
};

}  // namespace quire::kernels
