// Checks that both readers share: shapes, sizes and places that a file claims, before any use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::weights {

// Returns the product of the dimensions in order, or nullopt when one is negative or the product
// leaves int64.
[[nodiscard]] std::optional<std::int64_t> checked_product(std::span<const std::int64_t> shape);

// Formats a shape as "[2, 3]", for messages.
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

// Bytes [begin, end) of the data section that one tensor claims. Precondition: begin <= end.
struct ByteRange {
  std::string_view name;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The layout of the data section.
struct SectionRules {
  std::uint64_t bytes = 0;      // bytes of the section
  std::uint64_t alignment = 1;  // gaps shorter than this are padding
  bool open_end = false;        // bytes behind the last tensor may belong to none
};

// Compares byte ranges with each other and with their section, in O(n log n). kCorrupt names file
// and tensors when two ranges share a byte, one leaves the section, or a name occurs twice. It does
// so when bytes before, between or behind them belong to none and must not.
[[nodiscard]] Status check_byte_ranges(std::vector<ByteRange> ranges, const SectionRules& section,
                                       std::string_view file);

}  // namespace quire::weights
