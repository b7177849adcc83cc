// Marked text: the text of an answer in which special tokens stand between two bytes that no UTF-8
// has. So a mark that is a special token is never found in a text that only spells it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace quire::text::answer {

constexpr char kSpecialBegin = '\xFE';
constexpr char kSpecialEnd = '\xFF';
constexpr std::string_view kBlanks = " \t\r\n";

// Returns the special token of this spelling as it stands in marked text.
[[nodiscard]] std::string special(std::string_view spelling);
// Returns marked text without its special tokens.
[[nodiscard]] std::string without_specials(std::string_view marked);
// Returns marked text without its special tokens, but for those whose spelling `kept` lists. These
// become their spelling.
[[nodiscard]] std::string with_spelled(std::string_view marked,
                                       std::initializer_list<std::string_view> kept);
// Returns the text without the blanks around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);
// Returns the text without the blanks at its end.
[[nodiscard]] std::string_view trimmed_end(std::string_view text);
// Drops a prefix. Returns false for a text that does not begin with it.
[[nodiscard]] bool skip(std::string_view& text, std::string_view prefix);
// Drops everything up to the end of the first `mark`, and returns what stood before it. Drops and
// returns all of a text without the mark.
[[nodiscard]] std::string_view take_until(std::string_view& text, std::string_view mark);

}  // namespace quire::text::answer
