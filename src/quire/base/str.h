// Small text helpers for messages. gcc 12 has no <format>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace quire::base {

// Joins the printed forms of all arguments: str_cat("needs ", 3, " blocks").
template <class... Args>
[[nodiscard]] std::string str_cat(const Args&... args) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // memory that is refused throws; else the text would be cut
  (out << ... << args);
  return std::move(out).str();
}

// `text` in double quotes with control characters and bytes that are not UTF-8 escaped, cut between
// characters within `max_bytes`; for showing untrusted names in messages.
[[nodiscard]] std::string quoted(std::string_view text, std::size_t max_bytes = 80);

// "19.5 MiB", "512 B".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

}  // namespace quire::base
