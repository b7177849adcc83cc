// Typed members, kept objects and lists of JSON values, for what json.h declares above its views.
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::base {
namespace {

Error wrong_type(std::string_view key, std::string_view expected, JsonView value) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = str_cat("key ", base::quoted(key), " must be ", expected, ", not ",
                             base::quoted(write_json(value), 40))};
}

}  // namespace

Result<std::string> kept_object(std::string_view text, std::string_view what) {
  QUIRE_TRY(const Json object, parse_kept_object(text, what));
  return write_json(object);
}

std::string merged_objects(std::string_view object, std::string_view over) {
  if (over == "{}") {
    return std::string(object);
  }
  Json merged = parse_json(object, "an object").value();
  const Json said = parse_json(over, "an object").value();
  for (const auto& [key, value] : said.view().members()) {
    merged.set(key, Json::copy(value));
  }
  return write_json(merged);
}

Result<std::int64_t> get_int(JsonView object, std::string_view key, std::int64_t fallback) {
  const JsonView value = object.find(key);
  if (value.is_null()) {
    return fallback;
  }
  if (value.is_int()) {
    return value.as_int();
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const double number = value.kind() == JsonKind::kDouble ? value.as_double() : 0.5;
  if (std::trunc(number) == number && std::fabs(number) <= kExact) {
    return static_cast<std::int64_t>(number);
  }
  return wrong_type(key, "an integer", value);
}

Result<double> get_double(JsonView object, std::string_view key, double fallback) {
  const JsonView value = object.find(key);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_number() || !std::isfinite(value.as_double())) {
    return wrong_type(key, "a number", value);
  }
  return value.as_double();
}

Result<bool> get_bool(JsonView object, std::string_view key, bool fallback) {
  const JsonView value = object.find(key);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_bool()) {
    return wrong_type(key, "true or false", value);
  }
  return value.as_bool();
}

Result<std::string> get_string(JsonView object, std::string_view key, std::string_view fallback) {
  const JsonView value = object.find(key);
  if (value.is_null()) {
    return std::string(fallback);
  }
  if (!value.is_string()) {
    return wrong_type(key, "a string", value);
  }
  return std::string(value.as_string());
}

}  // namespace quire::base
