// The alphabet of byte-level BPE: every byte stands as one printable character, so that a
// vocabulary of arbitrary bytes can be written as text. Source: GPT-2's encoder.py,
// bytes_to_unicode.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

// Appends the spelling of `bytes` in the alphabet.
void append_byte_spelling(std::string& out, std::string_view bytes);

// Appends the bytes that well-formed `spelling` stands for; false, and nothing appended, when a
// character is outside.
[[nodiscard]] bool append_bytes_of(std::string& out, std::string_view spelling);

// Returns the bytes that well-formed `spelling` stands for, or nullopt when a character is outside.
[[nodiscard]] std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace quire::text
