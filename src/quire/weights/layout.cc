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

Status check_names(std::vector<Extent> extents, std::string_view file) {
  std::ranges::sort(extents, {}, &Extent::name);
  const auto twice = std::ranges::adjacent_find(extents, {}, &Extent::name);
  if (twice != extents.end()) {
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

Status check_extents(std::vector<Extent> extents, const SectionRules& section,
                     std::string_view file) {
  QUIRE_TRY_STATUS(check_names(extents, file));
  std::ranges::sort(extents, {}, [](const Extent& e) { return std::pair(e.begin, e.end); });
  Extent before = {.name = "start of the data", .begin = 0, .end = 0};
  for (const Extent& extent : extents) {
    if (extent.end > section.bytes) {
      return {ErrorCode::kCorrupt,
              str_cat(file, ": tensor ", base::quoted(extent.name), " ends at byte ", extent.end,
                      " of the data, which has ", section.bytes, "; is the file truncated?")};
    }
    if (extent.begin < before.end) {
      return {
          ErrorCode::kCorrupt,
          str_cat(file, ": tensor ", base::quoted(extent.name), " begins at byte ", extent.begin,
                  " inside tensor ", base::quoted(before.name), ", which ends at ", before.end)};
    }
    if (extent.begin - before.end >= section.alignment) {
      return {ErrorCode::kCorrupt,
              str_cat(file, ": bytes ", before.end, " to ", extent.begin, " before tensor ",
                      base::quoted(extent.name), " belong to no tensor")};
    }
    before = extent;
  }
  if (!section.open_end && section.bytes - before.end >= section.alignment) {
    return {ErrorCode::kCorrupt, str_cat(file, ": bytes ", before.end, " to ", section.bytes,
                                         " at the end of the data belong to no tensor")};
  }
  return {};
}

}  // namespace quire::weights
