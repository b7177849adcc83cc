// Memory for the rows of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/device/aligned_buffer.h"

namespace quire::model {

// Returns [rows, width] numbers of a buffer, which grows to the largest step and stays.
[[nodiscard]] inline std::span<float> rows_in(device::AlignedBuffer<float>& buffer,
                                              std::int64_t rows, std::int64_t width) {
  const auto size = static_cast<std::size_t>(rows * width);
  buffer.require(size);
  return buffer.span().first(size);
}

}  // namespace quire::model
