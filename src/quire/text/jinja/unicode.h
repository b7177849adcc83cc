// Python's view of code points: what its str methods call space, letter or line break. The sets are
// not those of unicode.h, which follows Rust.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::text::jinja {

struct Decoded {
  char32_t code = 0;
  std::size_t bytes = 0;
};

// The code point that starts at `offset`. Precondition: `text` is well-formed, offset < size.
[[nodiscard]] Decoded decode_at(std::string_view text, std::size_t offset);
// The code point that ends before `offset`. Precondition: `text` is well-formed, offset > 0.
[[nodiscard]] Decoded decode_before(std::string_view text, std::size_t offset);

[[nodiscard]] bool is_space(char32_t code);       // str.isspace, and \s in regular expressions
[[nodiscard]] bool is_line_break(char32_t code);  // where str.splitlines cuts
[[nodiscard]] bool is_printable(char32_t code);   // what repr leaves unescaped
[[nodiscard]] bool is_letter(char32_t code);      // str.isalpha
[[nodiscard]] bool is_decimal(char32_t code);     // str.isdecimal
[[nodiscard]] bool is_digit(char32_t code);       // str.isdigit
[[nodiscard]] bool is_word(char32_t code);        // \w in regular expressions
[[nodiscard]] bool is_upper(char32_t code);       // Unicode property Uppercase
[[nodiscard]] bool is_lower(char32_t code);       // Unicode property Lowercase
[[nodiscard]] bool is_cased(char32_t code);       // upper, lower or title case
// str.isupper or str.islower: a cased letter, and none of another case.
[[nodiscard]] bool is_all_of_case(std::string_view text, bool upper);

// Full case mappings, appended as UTF-8. `at` is the offset of the code point in `text`, which the
// lower case of a final sigma depends on.
void append_upper(std::string_view text, std::size_t at, std::string& out);
void append_lower(std::string_view text, std::size_t at, std::string& out);
void append_title(std::string_view text, std::size_t at, std::string& out);

}  // namespace quire::text::jinja
