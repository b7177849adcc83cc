#include "quire/text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "quire/base/check.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
         (c >= 0x7B && c <= 0x7E);
}

// Other_Alphabetic outside M and Nl: circled and squared letters, the only ones (PropList.txt).
bool is_other_alphabetic(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

// Appends the normal form of a stretch.
void append_normal_form(std::string& out, std::string_view text, int flags) {
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): an enum of flags to be joined
  const auto options = static_cast<utf8proc_option_t>(flags);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  QUIRE_CHECK(length >= 0, "utf8proc refused well-formed text");
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
  std::free(mapped);
}

// Flags of utf8proc_option_t.
int flags_of(NormalForm form) {
  switch (form) {
    case NormalForm::kNfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalForm::kNfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalForm::kNfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::kNfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return UTF8PROC_STABLE;
}

}  // namespace

bool is_whitespace(char32_t c) {
  if (c < 0x80) {
    return c == ' ' || (c >= '\t' && c <= '\r');
  }
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || is_other_alphabetic(c);
  }
}

bool is_numeric(char32_t c) {
  if (c < 0x80) {
    return c >= '0' && c <= '9';
  }
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return is_ascii_punctuation(c);
  }
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_other(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO;
}

bool is_cjk(char32_t c) {
  // 2B920 (not 2B820) is what the reference library has.
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(std::string& out, char32_t c) {
  if (c == 0x130) {  // the one character whose lower case is two: i and a dot above
    append_code_point(out, U'i');
    append_code_point(out, 0x307);
    return;
  }
  append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string to_normal_form(std::string_view text, NormalForm form) {
  const int flags = flags_of(form);
  std::string out;
  out.reserve(text.size());
  // ASCII is its own normal form and only composes as the first of a pair, so only stretches of
  // other characters, each with the one before it, go through utf8proc.
  std::size_t copied = 0;
  std::size_t position = 0;
  while (position < text.size()) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const std::size_t start = position > copied ? position - 1 : position;
    out += text.substr(copied, start - copied);
    while (position < text.size() && static_cast<unsigned char>(text[position]) >= 0x80) {
      ++position;
    }
    append_normal_form(out, text.substr(start, position - start), flags);
    copied = position;
  }
  out += text.substr(copied);
  return out;
}

std::size_t first_grapheme(std::string_view text) {
  std::size_t position = 0;
  auto previous = static_cast<utf8proc_int32_t>(next_code_point(text, position));
  utf8proc_int32_t state = 0;
  while (position < text.size()) {
    std::size_t next = position;
    const auto current = static_cast<utf8proc_int32_t>(next_code_point(text, next));
    if (utf8proc_grapheme_break_stateful(previous, current, &state)) {
      break;
    }
    previous = current;
    position = next;
  }
  return position;
}

}  // namespace quire::text
