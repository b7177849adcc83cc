// Checks and repairs UTF-8: bodies of answers must be UTF-8, also where they repeat what a client
// sent.
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

// Returns true for well-formed UTF-8.
[[nodiscard]] bool is_utf8(std::string_view text);
// Returns the text with each ill-formed byte as U+FFFD.
[[nodiscard]] std::string repaired_utf8(std::string_view text);

}  // namespace quire::server
