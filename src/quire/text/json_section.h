// Reading the typed sections of tokenizer.json: {"type": "X", ...}, or a Sequence of such.
#pragma once

#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::text {

// The JSON object and its type. kInvalidArgument naming `section` when it is none with a type.
struct TypedSection {
  base::JsonView object;
  std::string type;
};
[[nodiscard]] Result<TypedSection> typed_section(base::JsonView value, std::string_view section);

[[nodiscard]] Error unknown_type(std::string_view section, std::string_view type);

// Returns a required member. kInvalidArgument naming `key` when absent or of another type.
[[nodiscard]] Result<std::string> require_string(base::JsonView object, std::string_view key);
[[nodiscard]] Result<base::JsonView> require_array(base::JsonView object, std::string_view key);
// Returns a member that holds exactly one character, as code point.
[[nodiscard]] Result<char32_t> get_char(base::JsonView object, std::string_view key,
                                        char32_t fallback);

// Calls `each(section)` for `value`, or for the members of a Sequence (under `list_key`), however
// nested. Null is an empty Sequence. The depth is bounded by the JSON parser.
template <class Each>
[[nodiscard]] Status for_each_section(base::JsonView value, std::string_view section,
                                      std::string_view list_key, Each&& each) {
  if (value.is_null()) {
    return {};
  }
  QUIRE_TRY(const TypedSection typed, typed_section(value, section));
  if (typed.type != "Sequence") {
    return each(typed);
  }
  QUIRE_TRY(const base::JsonView members, require_array(typed.object, list_key));
  for (const base::JsonView member : members.elements()) {
    QUIRE_TRY_STATUS(for_each_section(member, section, list_key, each));
  }
  return {};
}

}  // namespace quire::text
