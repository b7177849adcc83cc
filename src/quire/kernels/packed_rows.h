// Activations X [rows, depth] prepared for the kernels: blocks of up to 16 rows, each block step by
// step.
//
//   block b holds r = min(16, rows - 16 b) rows as [steps][r][32]. Nothing is padded to 16 rows, so
//   one row is a plain vector, and 16 rows are a stack of ready AMX tiles. Inputs beyond the depth
//   are zero.
//
//   f32    fp32 values
//   bf16   rounded to nearest even
//   int8   values in -127..127, plus per (step, row): an fp32 scale of two bits behind its leading
//          one (what products gain by that: cpu/quant_vec.h), and -8 times the sum of the 32
//          values, which turns products with w + 8 (or, times 16, with w + 128) into products with
//          w; beside it the same of the first 16 values
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

inline constexpr int kBlockRows = 16;

// Returns the format of rows that the products with such weights take. Sets without dots of bf16
// pairs multiply bf16 weights with fp32 values.
[[nodiscard]] inline RowFormat row_format_for(const KernelTable& table, WeightFormat format) {
  return table.row_formats[static_cast<std::uint8_t>(format)];
}
[[nodiscard]] constexpr int value_bytes(RowFormat format) {
  constexpr int kBytes[] = {4, 2, 1};
  return kBytes[static_cast<std::uint8_t>(format)];
}

// Storage only; pack_rows (linear.h) fills it. Owned by one caller; move only.
class PackedRows {
 public:
  // Makes room for rows of a shape. Contents are undefined afterwards. Allocates only when it needs
  // more than it ever held.
  void reshape(RowFormat format, std::int64_t rows, std::int64_t depth);

  [[nodiscard]] RowFormat format() const { return format_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t depth() const { return depth_; }
  [[nodiscard]] std::int64_t steps() const { return (depth_ + kStepDepth - 1) / kStepDepth; }
  [[nodiscard]] std::int64_t blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }

  // Returns the values of row `row`, the first of a block.
  [[nodiscard]] std::byte* values(std::int64_t row) {
    return values_.data() + row * steps() * kStepDepth * value_bytes(format_);
  }
  [[nodiscard]] const std::byte* values(std::int64_t row) const {
    return values_.data() + row * steps() * kStepDepth * value_bytes(format_);
  }
  // Returns the scales [steps][r] of a block, whose first row is `row`. Null unless the rows are
  // int8.
  [[nodiscard]] float* scales(std::int64_t row) { return int8_group(scales_.data(), row); }
  [[nodiscard]] const float* scales(std::int64_t row) const {
    return int8_group(scales_.data(), row);
  }
  [[nodiscard]] std::int32_t* offsets(std::int64_t row) { return int8_group(offsets_.data(), row); }
  [[nodiscard]] const std::int32_t* offsets(std::int64_t row) const {
    return int8_group(offsets_.data(), row);
  }
  // Returns the offsets of the first 16 values of each group.
  [[nodiscard]] std::int32_t* first_offsets(std::int64_t row) {
    return int8_group(first_offsets_.data(), row);
  }
  [[nodiscard]] const std::int32_t* first_offsets(std::int64_t row) const {
    return int8_group(first_offsets_.data(), row);
  }
  // Returns room for one number per row, for the caller that packs them.
  [[nodiscard]] std::span<float> row_factors();

 private:
  template <class T>
  [[nodiscard]] T* int8_group(T* data, std::int64_t row) const {
    return format_ == RowFormat::kInt8 ? data + row * steps() : nullptr;
  }

  RowFormat format_ = RowFormat::kF32;
  std::int64_t rows_ = 0;
  std::int64_t depth_ = 0;
  device::AlignedBuffer<std::byte> values_;
  device::AlignedBuffer<float> scales_;
  device::AlignedBuffer<std::int32_t> offsets_;
  device::AlignedBuffer<std::int32_t> first_offsets_;
  device::AlignedBuffer<float> row_factors_;
};

}  // namespace quire::kernels
