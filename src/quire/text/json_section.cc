#include "quire/text/json_section.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/utf8.h"

namespace quire::text {

Result<TypedSection> typed_section(base::JsonView value, std::string_view section) {
  if (!value.is_object()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(section, " must be an object or null")};
  }
  QUIRE_TRY(std::string type, base::get_string(value, "type", ""));
  if (type.empty()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(section, " has no type")};
  }
  return TypedSection{.object = value, .type = std::move(type)};
}

Error unknown_type(std::string_view section, std::string_view type) {
  return {.code = ErrorCode::kUnsupported,
          .message = base::str_cat(section, " of type ", base::quoted(type), " is not supported")};
}

Result<std::string> require_string(base::JsonView object, std::string_view key) {
  const base::JsonView value = object.find(key);
  if (!value.is_string()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be a string")};
  }
  return std::string(value.as_string());
}

Result<base::JsonView> require_array(base::JsonView object, std::string_view key) {
  const base::JsonView value = object.find(key);
  if (!value.is_array()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be an array")};
  }
  return value;
}

Result<char32_t> get_char(base::JsonView object, std::string_view key, char32_t fallback) {
  QUIRE_TRY(const std::string text, base::get_string(object, key, ""));
  if (text.empty()) {
    return fallback;
  }
  if (count_code_points(text) != 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be one character, not ",
                          base::quoted(text))};
  }
  std::size_t position = 0;
  return next_code_point(text, position);
}

}  // namespace quire::text
