// Reads JSON of bodies strictly.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "api/errors.h"

namespace quire::server {

namespace json = boost::json;

// Limit on how deep arrays and objects nest.
inline constexpr std::size_t kMaxJsonDepth = 64;

// Parses a text. O(text).
// Errors: 400 `invalid_json` for text that is not JSON or not UTF-8, for more than kMaxJsonDepth
// levels, and for numbers beyond double or int64. Also for a duplicate key, whose path is `param`.
[[nodiscard]] Checked<json::value> read_json(std::string_view text);

// Returns the path of a member: "a" and "b" give "a.b". An empty `path` is the body.
[[nodiscard]] std::string member_path(std::string_view path, std::string_view name);
// Returns the path of an element: "a" and 2 give "a[2]".
[[nodiscard]] std::string element_path(std::string_view path, std::size_t index);

// Appends `text` as a JSON string in quotes. Precondition: well-formed UTF-8. O(text).
void append_json_string(std::string& out, std::string_view text);

// Returns `to_json` of each item, in order.
template <class Items, class ToJson>
[[nodiscard]] json::array array_of(const Items& items, const ToJson& to_json) {
  json::array list;
  list.reserve(items.size());
  for (const auto& item : items) {
    list.emplace_back(to_json(item));
  }
  return list;
}

}  // namespace quire::server
