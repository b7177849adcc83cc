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

// Product of the dimensions in order; nullopt when one is negative or the product leaves int64.
[[nodiscard]] std::optional<std::int64_t> checked_product(std::span<const std::int64_t> shape);

// "[2, 3]", for messages.
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

// Bytes [begin, end) of the data section that one tensor claims. Precondition: begin <= end.
struct ByteRange {
  std::string_view name;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// How the data section is laid out.
struct SectionRules {
  std::uint64_t bytes = 0;      // of the section
  std::uint64_t alignment = 1;  // gaps shorter than this are padding
  bool open_end = false;        // bytes behind the last tensor may belong to none
};

// kCorrupt, naming file and tensors, when two byte ranges share a byte, one leaves the section, a
// name occurs twice, or bytes before, between or behind them belong to none and must not. O(n log
// n).
[[nodiscard]] Status check_byte_ranges(std::vector<ByteRange> ranges, const SectionRules& section,
                                       std::string_view file);

}  // namespace quire::weights
