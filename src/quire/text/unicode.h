// Character properties, letter cases and normal forms, by utf8proc (Unicode 14 in Debian 12).
// Tokenizers follow the Rust standard library and the crates of Hugging Face `tokenizers`. Chat
// templates follow Python, whose sets differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::text {

// Classifies characters as Rust does, like the next functions.
[[nodiscard]] bool is_whitespace(char32_t c);       // White_Space
[[nodiscard]] bool is_word(char32_t c);             // \w: Alphabetic, M, Nd, Pc, Join_Control
[[nodiscard]] bool is_numeric(char32_t c);          // N
[[nodiscard]] bool is_punctuation(char32_t c);      // P, or ASCII punctuation and symbols
[[nodiscard]] bool is_mark(char32_t c);             // M
[[nodiscard]] bool is_nonspacing_mark(char32_t c);  // Mn
[[nodiscard]] bool is_other(char32_t c);            // Cc, Cf, Co
[[nodiscard]] bool is_cjk(char32_t c);              // the blocks that BERT calls Chinese

// Appends the full lower-case mapping of one character (no final-sigma rule).
void append_lower(std::string& out, char32_t c);

// Classifies characters as Python does, like the next functions.
[[nodiscard]] bool is_python_space(char32_t c);       // str.isspace, and \s in regular expressions
[[nodiscard]] bool is_python_line_break(char32_t c);  // a place where str.splitlines cuts
[[nodiscard]] bool is_python_printable(char32_t c);   // a character that repr leaves unescaped
[[nodiscard]] bool is_python_word(char32_t c);        // \w in regular expressions
// Tells whether a character has upper, lower or title case. Unlike in Python, no modifier letter
// has.
[[nodiscard]] bool is_cased(char32_t c);

// Appends the full upper-case mapping of one character; the next function appends the title-case
// one.
void append_upper(std::string& out, char32_t c);
void append_title(std::string& out, char32_t c);
// Appends the full lower-case mapping of the character at `offset` of well-formed `text`. A sigma
// that ends a word has a form of its own.
void append_lower_at(std::string& out, std::string_view text, std::size_t offset);

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Returns the normal form. Precondition: well-formed UTF-8.
[[nodiscard]] std::string to_normal_form(std::string_view text, NormalForm form);

// Returns the length in bytes of the first extended grapheme cluster of non-empty, well-formed
// `text`.
[[nodiscard]] std::size_t first_grapheme(std::string_view text);

}  // namespace quire::text
