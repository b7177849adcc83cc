// Texts that come from outside: what is not UTF-8 is refused with the place, or replaced and noted.
#pragma once

#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::cli {

// Returns "" where `text` is UTF-8, else which byte is not and the way out. O(bytes). A check of
// CLI11.
[[nodiscard]] std::string refuse_no_utf8(const std::string& text);
// Returns kInvalidArgument in these words, with `what` before them, where `text` is no UTF-8.
[[nodiscard]] Status check_utf8(const std::string& text, std::string_view what);

// Returns `text` with U+FFFD for each run of bytes that is no character, as the library reads it.
// Notes on stderr, with `what` before it, where the first of them stands.
[[nodiscard]] std::string repair_utf8(std::string text, std::string_view what);

}  // namespace quire::cli
