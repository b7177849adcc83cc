// UTF-8: walking well-formed text, repairing ill-formed text, and holding back what is incomplete.
// Repair follows the Unicode standard's "maximal subpart" practice (section 3.9), as Rust's
// from_utf8_lossy and Python's errors="replace" do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";             // U+2581, for a blank

// Returns the bytes of the character that starts with `lead`. Precondition: `lead` starts a
// character of well-formed text.
[[nodiscard]] inline std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

[[nodiscard]] inline bool is_utf8_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Returns the code point at `position` of well-formed `text`, and moves `position` behind it.
[[nodiscard]] char32_t next_code_point(std::string_view text, std::size_t& position);

// Returns the code point that ends at `end` (> 0) of well-formed `text`.
[[nodiscard]] char32_t previous_code_point(std::string_view text, std::size_t end);

struct Decoded {
  char32_t code = 0;
  std::size_t bytes = 0;
};

// Returns the code point that starts at `offset` (< size) of well-formed `text`.
[[nodiscard]] Decoded decode_at(std::string_view text, std::size_t offset);
// Returns the code point that ends before `offset` (> 0) of well-formed `text`.
[[nodiscard]] Decoded decode_before(std::string_view text, std::size_t offset);

// Appends the UTF-8 of `code_point`. Precondition: it is a Unicode scalar value.
void append_code_point(std::string& out, char32_t code_point);

[[nodiscard]] std::size_t count_code_points(std::string_view well_formed);

// Returns the length of the longest well-formed prefix. O(bytes).
[[nodiscard]] std::size_t valid_utf8_prefix(std::string_view bytes);

// Returns `bytes` with every maximal ill-formed subpart replaced by U+FFFD.
[[nodiscard]] std::string repair_utf8(std::string_view bytes);

// Appends the repaired form of `bytes` to `out`, except for a trailing part that more bytes could
// complete. Returns how many trailing bytes (0 to 3) were left out.
[[nodiscard]] std::size_t append_complete_utf8(std::string_view bytes, std::string& out);

}  // namespace quire::text
