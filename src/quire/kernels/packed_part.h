// PackedPart: one weight of a model as it lies in memory, and in a file from which it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "quire/kernels/packed_weights.h"

namespace quire::kernels {

// A packed matrix [columns, depth], or a vector of `columns` fp32 values. Borrows its bytes.
struct PackedPart {
  std::optional<WeightFormat> format;  // nothing: a vector, whose depth is 0
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  std::span<const std::byte> bytes;
};

// Returns the bytes of its shape; nothing for one that no part has.
[[nodiscard]] inline std::optional<std::int64_t> bytes_of(const PackedPart& part) {
  if (part.format) {
    return packed_bytes(*part.format, part.columns, part.depth);
  }
  const bool is_vector = part.columns >= 1 && part.columns <= kMaxPackedSize && part.depth == 0;
  return is_vector ? std::optional(part.columns * std::int64_t{sizeof(float)}) : std::nullopt;
}

}  // namespace quire::kernels
