// Texts from outside: bytes that are not UTF-8 are refused with their place, or replaced and noted.
#pragma once

#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::cli {

// Returns "" where `text` is UTF-8, else a message that names the first bad byte and the way out.
// O(bytes). A check of CLI11.
[[nodiscard]] std::string refuse_no_utf8(const std::string& text);
// Checks that `text` is UTF-8. kInvalidArgument with the message of refuse_no_utf8(), and `what`
// before it.
[[nodiscard]] Status check_utf8(const std::string& text, std::string_view what);

// Returns `text` with U+FFFD for each run of bytes that is no character, as the library reads it.
// Notes on stderr, with `what` before it, where the first run stands.
[[nodiscard]] std::string repair_utf8(std::string text, std::string_view what);

}  // namespace quire::cli
