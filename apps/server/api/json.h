// JSON of bodies, read strictly (rules H2 and H5).
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "api/errors.h"

namespace quire::server {

namespace json = boost::json;

// Most arrays and objects inside one another.
inline constexpr std::size_t kMaxJsonDepth = 64;

// Returns the value of a text. O(text).
// Errors: 400 `invalid_json` for text that is no JSON or no UTF-8, for more than kMaxJsonDepth
// levels, for numbers beyond double or int64, and for a key that stands twice: `param` is its path.
[[nodiscard]] Checked<json::value> read_json(std::string_view text);

// Returns the path of a member: "a" and "b" give "a.b". An empty `path` is the body.
[[nodiscard]] std::string member_path(std::string_view path, std::string_view name);
// Returns the path of an element: "a" and 2 give "a[2]".
[[nodiscard]] std::string element_path(std::string_view path, std::size_t index);

// Appends `text` as a JSON string in quotes. Ill-formed UTF-8 is the caller's to avoid. O(text).
void append_json_string(std::string& out, std::string_view text);

// Returns what `to_json` makes of each item, in order.
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
