// Values of options and outputs as JSON. Text that is no UTF-8 has U+FFFD for other bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire::engine {

// Returns the JSON of a value, as each json_of does.
[[nodiscard]] base::Json json_of(std::integral auto value) { return value; }
// Returns the JSON of a number. JSON has no infinite numbers and no NaN: they become the largest
// number, or null.
[[nodiscard]] inline base::Json json_of(double value) {
  using Limits = std::numeric_limits<double>;
  return std::isnan(value) ? base::Json(nullptr)
                           : base::Json(std::clamp(value, Limits::lowest(), Limits::max()));
}
[[nodiscard]] inline base::Json json_of(std::string_view text) { return text::repair_utf8(text); }
[[nodiscard]] inline base::Json json_of(const std::string& text) {
  return json_of(std::string_view(text));
}
// Returns the JSON of a name and a count.
[[nodiscard]] inline base::Json json_of(const std::pair<std::string, std::int64_t>& source) {
  return base::Json::array(json_of(source.first), source.second);
}
// Returns pairs of an id and a number as one JSON object.
template <class Number>
[[nodiscard]] base::Json json_of(const std::vector<std::pair<TokenId, Number>>& by_id) {
  base::Json object = base::Json::object();
  for (const auto& [id, value] : by_id) {
    object.set(std::to_string(id), json_of(static_cast<double>(value)));
  }
  return object;
}
template <class Value>
[[nodiscard]] base::Json json_of(const std::vector<Value>& values) {
  base::Json array = base::Json::array();
  for (const Value& value : values) {
    array.push(json_of(value));
  }
  return array;
}
template <class Value>
[[nodiscard]] base::Json json_of(const std::optional<Value>& value) {
  return value ? json_of(*value) : base::Json(nullptr);
}

// Sets a member, and leaves out an empty optional.
template <class Value>
void set_member(base::Json& object, std::string_view name, const Value& value) {
  object.set(name, json_of(value));
}
template <class Value>
void set_member(base::Json& object, std::string_view name, const std::optional<Value>& value) {
  if (value) {
    object.set(name, json_of(*value));
  }
}

}  // namespace quire::engine
