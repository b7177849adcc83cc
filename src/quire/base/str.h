// Text helpers for messages. gcc 12 has no <format>.
//
// Thread rule: free functions without state; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace quire::base {

// Returns the printed forms of all arguments, joined: str_cat("needs ", 3, " blocks"). Throws
// std::bad_alloc or std::ios_base::failure when memory is refused.
template <class... Args>
[[nodiscard]] std::string str_cat(const Args&... args) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // memory that is refused throws; else the text would be cut
  (out << ... << args);
  return std::move(out).str();
}

// Returns `text` in double quotes, for untrusted names in messages. Control characters and bytes
// that are not UTF-8 are escaped. The text is cut between characters to at most `max_bytes`.
[[nodiscard]] std::string quoted(std::string_view text, std::size_t max_bytes = 80);

// Returns a number of bytes for people: "19.5 MiB", "512 B".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

}  // namespace quire::base
