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

Result<TypedSection> typed_section(const base::json::value& value, std::string_view section) {
  const base::json::object* object = value.if_object();
  if (object == nullptr) {
    return {ErrorCode::kInvalidArgument, base::str_cat(section, " must be an object or null")};
  }
  QUIRE_TRY(std::string type, base::get_string(*object, "type", ""));
  if (type.empty()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(section, " has no type")};
  }
  return TypedSection{.object = object, .type = std::move(type)};
}

Error unknown_type(std::string_view section, std::string_view type) {
  return {.code = ErrorCode::kUnsupported,
          .message = base::str_cat(section, " of type ", base::quoted(type), " is not supported")};
}

Result<std::string> require_string(const base::json::object& object, std::string_view key) {
  const base::json::value* value = base::find(object, key);
  if (value == nullptr || !value->is_string()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be a string")};
  }
  return std::string(value->get_string());
}

Result<const base::json::array*> require_array(const base::json::object& object,
                                               std::string_view key) {
  const base::json::value* value = base::find(object, key);
  if (value == nullptr || !value->is_array()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("key ", base::quoted(key), " must be an array")};
  }
  return &value->get_array();
}

Result<char32_t> get_char(const base::json::object& object, std::string_view key,
                          char32_t fallback) {
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
