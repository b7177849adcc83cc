// JSON for files and requests from strangers: bounded parsing and getters whose errors name the
// key. Parsing is Boost.JSON (depth limit 64 here); this header adds only the bounds and the names.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::base {

namespace json = boost::json;

// Parses UTF-8 `text`; `what` names it in errors ("config.json"). kInvalidArgument for bad syntax,
// depth over 64, or trailing bytes. A number beyond 64 bits is the double nearest to it.
[[nodiscard]] Result<json::value> parse_json(std::string_view text, std::string_view what);

// Parses an object that is kept and given back, such as metadata: kInvalidArgument also for another
// type, for depth over 60 (what keeps it may lay it inside objects of its own), and for a number
// that would come back as another one (an integer beyond 64 bits, 1e400).
[[nodiscard]] Result<json::object> parse_kept_object(std::string_view text, std::string_view what);
// The same as text without blanks.
[[nodiscard]] Result<std::string> kept_object(std::string_view text, std::string_view what);
// `object` with the members of `over`, which replace those of equal keys; both are texts that
// objects were written as.
[[nodiscard]] std::string merged_objects(std::string_view object, std::string_view over);

// Member `key` of `object`, or nullptr when absent or null.
[[nodiscard]] const json::value* find(const json::object& object, std::string_view key);

// Typed members. Absent or null gives `fallback`; another type is kInvalidArgument naming `key`. An
// integer may be written as 1.0.
[[nodiscard]] Result<std::int64_t> get_int(const json::object& object, std::string_view key,
                                           std::int64_t fallback);
[[nodiscard]] Result<double> get_double(const json::object& object, std::string_view key,
                                        double fallback);
[[nodiscard]] Result<bool> get_bool(const json::object& object, std::string_view key,
                                    bool fallback);
[[nodiscard]] Result<std::string> get_string(const json::object& object, std::string_view key,
                                             std::string_view fallback);

}  // namespace quire::base
