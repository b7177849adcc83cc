#include "utf8.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::cli {
namespace {

// What may follow a first byte of a character: how many bytes, and the range of the first of them.
// Overlong forms, surrogates and what is beyond U+10FFFF are outside of these ranges.
struct Lead {
  std::uint8_t first;
  std::uint8_t last;
  std::uint8_t more;
  std::uint8_t least;
  std::uint8_t most;
};
constexpr Lead kLeads[] = {
    {0x00, 0x7F, 0, 0x80, 0xBF}, {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
    {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF},
    {0xF0, 0xF0, 3, 0x90, 0xBF}, {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F},
};

// Returns the length of the character at the start of `text`, 0 where none stands.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const auto* const lead = std::ranges::find_if(
      kLeads, [&](const Lead& each) { return each.first <= byte(0) && byte(0) <= each.last; });
  if (lead == std::ranges::end(kLeads) || text.size() <= lead->more) {
    return 0;
  }
  for (std::size_t i = 1; i <= lead->more; ++i) {
    const bool second = i == 1;
    if (byte(i) < (second ? lead->least : 0x80) || byte(i) > (second ? lead->most : 0xBF)) {
      return 0;
    }
  }
  return 1 + std::size_t{lead->more};
}

}  // namespace

std::string refuse_no_utf8(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(std::string_view(text).substr(at));
    if (length == 0) {
      char shown[8];
      std::snprintf(shown, sizeof shown, "0x%02X", static_cast<std::uint8_t>(text[at]));
      return "byte " + std::to_string(at + 1) + " (" + shown +
             ") is not UTF-8; convert the text first, as with iconv -f latin1 -t utf-8";
    }
    at += length;
  }
  return "";
}

Status check_utf8(const std::string& text, std::string_view what) {
  const std::string wrong = refuse_no_utf8(text);
  return wrong.empty() ? Status()
                       : Status(ErrorCode::kInvalidArgument, std::string(what) + ": " + wrong);
}

}  // namespace quire::cli
