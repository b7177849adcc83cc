#include "utf8.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ranges>
#include <string>
#include <string_view>

#include "output.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

// Says what may follow a first byte of a character: how many bytes, and the range of the first of
// them. Overlong forms, surrogates and what is beyond U+10FFFF are outside of these ranges.
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

// The beginning of a text: a character, or bytes that begin none.
struct Beginning {
  std::size_t bytes = 1;
  bool is_character = false;
};

// Reads the beginning of a text. Precondition: `text` is not empty.
Beginning beginning_of(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const auto* const lead = std::ranges::find_if(
      kLeads, [&](const Lead& each) { return each.first <= byte(0) && byte(0) <= each.last; });
  if (lead == std::ranges::end(kLeads)) {
    return {};
  }
  std::size_t bytes = 1;
  for (; bytes <= lead->more && bytes < text.size(); ++bytes) {
    const bool second = bytes == 1;
    if (byte(bytes) < (second ? lead->least : 0x80) || byte(bytes) > (second ? lead->most : 0xBF)) {
      break;
    }
  }
  return {.bytes = bytes, .is_character = bytes == 1 + std::size_t{lead->more}};
}

// Returns how many bytes stand before the first that begins no character.
std::size_t well_formed(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Beginning next = beginning_of(text.substr(at));
    if (!next.is_character) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

// Returns the place and the value of the byte at `at`.
std::string byte_at(std::string_view text, std::size_t at) {
  char shown[8];
  std::snprintf(shown, sizeof shown, "0x%02X", static_cast<std::uint8_t>(text[at]));
  return "byte " + std::to_string(at + 1) + " (" + shown + ") is not UTF-8";
}

}  // namespace

std::string refuse_no_utf8(const std::string& text) {
  const std::size_t at = well_formed(text);
  return at == text.size()
             ? ""
             : byte_at(text, at) + "; convert the text first, as with iconv -f latin1 -t utf-8";
}

Status check_utf8(const std::string& text, std::string_view what) {
  const std::string wrong = refuse_no_utf8(text);
  return wrong.empty() ? Status()
                       : Status(ErrorCode::kInvalidArgument, std::string(what) + ": " + wrong);
}

std::string repair_utf8(std::string text, std::string_view what) {
  const std::size_t first = well_formed(text);
  if (first == text.size()) {
    return text;
  }
  note("note: " + std::string(what) + ": " + byte_at(text, first) +
       "; such bytes are read as U+FFFD");
  std::string repaired;
  for (std::string_view rest = text; !rest.empty();) {
    const Beginning next = beginning_of(rest);
    repaired += next.is_character ? rest.substr(0, next.bytes) : "\uFFFD";
    rest.remove_prefix(next.bytes);
  }
  return repaired;
}

}  // namespace quire::cli
