// Character properties and normal forms, by utf8proc (Unicode 14 in Debian 12). Names and sets are
// those of the Rust standard library and crates that Hugging Face `tokenizers` uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::text {

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

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Precondition: well-formed UTF-8.
[[nodiscard]] std::string to_normal_form(std::string_view text, NormalForm form);

// Length in bytes of the first extended grapheme cluster of non-empty, well-formed `text`.
[[nodiscard]] std::size_t first_grapheme(std::string_view text);

}  // namespace quire::text
