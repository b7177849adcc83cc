// The filters of `x | name(...)`, the tests of `x is name(...)` and the functions name(...).
#pragma once

#include <string_view>

#include "quire/text/jinja/builtin.h"

namespace quire::text::jinja {

// Finds a filter; the next function finds a test, which returns a boolean. Null when there is none
// of that name.
[[nodiscard]] const Builtin* find_filter(std::string_view name);
[[nodiscard]] const Builtin* find_test(std::string_view name);
[[nodiscard]] const Builtin* find_function(std::string_view name);

}  // namespace quire::text::jinja
