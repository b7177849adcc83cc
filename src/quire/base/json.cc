#include "quire/base/json.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/base/str.h"
#include "quire/result.h"

// The one translation unit that compiles Boost.JSON.
#include <boost/json/src.hpp>

namespace quire::base {
namespace {

constexpr std::size_t kMaxDepth = 64;

Error wrong_type(std::string_view key, std::string_view expected, const json::value& value) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = str_cat("key ", quoted(key), " must be ", expected, ", not ",
                             quoted(json::serialize(value), 40))};
}

}  // namespace

Result<json::value> parse_json(std::string_view text, std::string_view what) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code failure;
  json::value value = json::parse({text.data(), text.size()}, failure, {}, options);
  if (failure) {
    return {ErrorCode::kInvalidArgument, str_cat(what, ": not valid JSON: ", failure.message())};
  }
  return value;
}

const json::value* find(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains({key.data(), key.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::int64_t> get_int(const json::object& object, std::string_view key,
                             std::int64_t fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return fallback;
  }
  if (value->is_int64()) {
    return value->get_int64();
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value->is_double() && std::trunc(value->get_double()) == value->get_double() &&
      std::fabs(value->get_double()) <= kExact) {
    return static_cast<std::int64_t>(value->get_double());
  }
  return wrong_type(key, "an integer", *value);
}

Result<double> get_double(const json::object& object, std::string_view key, double fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number()) {
    return wrong_type(key, "a number", *value);
  }
  return value->to_number<double>();
}

Result<bool> get_bool(const json::object& object, std::string_view key, bool fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_bool()) {
    return wrong_type(key, "true or false", *value);
  }
  return value->get_bool();
}

Result<std::string> get_string(const json::object& object, std::string_view key,
                               std::string_view fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return std::string(fallback);
  }
  if (!value->is_string()) {
    return wrong_type(key, "a string", *value);
  }
  return std::string(value->get_string());
}

}  // namespace quire::base
