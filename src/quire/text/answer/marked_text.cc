#include "quire/text/answer/marked_text.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace quire::text::answer {

std::string special(std::string_view spelling) {
  std::string out(1, kSpecialBegin);
  out += spelling;
  out += kSpecialEnd;
  return out;
}

std::string without_specials(std::string_view marked) { return with_spelled(marked, {}); }

std::string with_spelled(std::string_view marked, std::initializer_list<std::string_view> kept) {
  std::string out;
  while (true) {
    const std::size_t begin = marked.find(kSpecialBegin);
    out += marked.substr(0, begin);
    if (begin == std::string_view::npos) {
      return out;
    }
    marked.remove_prefix(begin + 1);
    const std::size_t end = marked.find(kSpecialEnd);
    const std::string_view spelling = marked.substr(0, end);
    if (std::ranges::find(kept, spelling) != kept.end()) {
      out += spelling;
    }
    marked.remove_prefix(end == std::string_view::npos ? marked.size() : end + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string_view::npos ? std::string_view() : trimmed_end(text.substr(begin));
}

std::string_view trimmed_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

bool skip(std::string_view& text, std::string_view prefix) {
  const bool starts = text.starts_with(prefix);
  text.remove_prefix(starts ? prefix.size() : 0);
  return starts;
}

std::string_view take_until(std::string_view& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + mark.size());
  return before;
}

}  // namespace quire::text::answer
