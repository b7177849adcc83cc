#include "quire/kernels/packed_rows.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

void PackedRows::reshape(RowFormat format, std::int64_t rows, std::int64_t depth) {
  format_ = format;
  rows_ = rows;
  depth_ = depth;
  const auto groups = static_cast<std::size_t>(rows * steps());
  values_.require(groups * kStepDepth * static_cast<std::size_t>(value_bytes(format)));
  if (format == RowFormat::kInt8) {
    scales_.require(groups);
    offsets_.require(groups);
    first_offsets_.require(groups);
  }
}

std::span<float> PackedRows::row_factors() {
  const auto count = static_cast<std::size_t>(rows_);
  row_factors_.require(count);
  return row_factors_.span().first(count);
}

}  // namespace quire::kernels
