#include "quire/weights/layout.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::weights {
namespace {

using base::str_cat;

Status check_names(std::vector<ByteRange> ranges, std::string_view file) {
  std::ranges::sort(ranges, {}, &ByteRange::name);
  const auto twice = std::ranges::adjacent_find(ranges, {}, &ByteRange::name);
  if (twice != ranges.end()) {
    return {ErrorCode::kCorrupt,
            str_cat(file, ": tensor ", base::quoted(twice->name), " occurs twice")};
  }
  return {};
}

}  // namespace

std::optional<std::int64_t> checked_product(std::span<const std::int64_t> shape) {
  std::int64_t product = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(product, dimension, &product)) {
      return std::nullopt;
    }
  }
  return product;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t dimension : shape) {
    text += text.size() > 1 ? ", " : "";
    text += std::to_string(dimension);
  }
  return text + "]";
}

Status check_byte_ranges(std::vector<ByteRange> ranges, const SectionRules& section,
                         std::string_view file) {
  QUIRE_TRY_STATUS(check_names(ranges, file));
  std::ranges::sort(ranges, {}, [](const ByteRange& e) { return std::pair(e.begin, e.end); });
  ByteRange before = {.name = "start of the data", .begin = 0, .end = 0};
  for (const ByteRange& range : ranges) {
    if (range.end > section.bytes) {
      return {ErrorCode::kCorrupt,
              str_cat(file, ": tensor ", base::quoted(range.name), " ends at byte ", range.end,
                      " of the data, which has ", section.bytes, "; is the file truncated?")};
    }
    if (range.begin < before.end) {
      return {
          ErrorCode::kCorrupt,
          str_cat(file, ": tensor ", base::quoted(range.name), " begins at byte ", range.begin,
                  " inside tensor ", base::quoted(before.name), ", which ends at ", before.end)};
    }
    if (range.begin - before.end >= section.alignment) {
      return {ErrorCode::kCorrupt,
              str_cat(file, ": bytes ", before.end, " to ", range.begin, " before tensor ",
                      base::quoted(range.name), " belong to no tensor")};
    }
    before = range;
  }
  if (!section.open_end && section.bytes - before.end >= section.alignment) {
    return {ErrorCode::kCorrupt, str_cat(file, ": bytes ", before.end, " to ", section.bytes,
                                         " at the end of the data belong to no tensor")};
  }
  return {};
}

}  // namespace quire::weights
