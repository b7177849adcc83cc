#include "quire/kernels/packed_rows.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

void PackedRows::reshape(RowFormat format, std::int64_t rows, std::int64_t depth) {
  format_ = format;
  rows_ = rows;
  depth_ = depth;
  const auto groups = static_cast<std::size_t>(rows * steps());
  values_.reserve(groups * kStepDepth * static_cast<std::size_t>(value_bytes(format)));
  if (format == RowFormat::kInt8) {
    scales_.reserve(groups);
    offsets_.reserve(groups);
  }
  QUIRE_CHECK(groups == 0 || values_.data() != nullptr, "out of memory for packed activations");
}

std::span<float> PackedRows::row_factors() {
  const auto count = static_cast<std::size_t>(rows_);
  row_factors_.reserve(count);
  QUIRE_CHECK(count == 0 || row_factors_.data() != nullptr, "out of memory for packed activations");
  return row_factors_.span().first(count);
}

}  // namespace quire::kernels
