#include "quire/text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <span>
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

// Returns whether `c` is Other_Alphabetic outside M and Nl: circled and squared letters, the only
// ones (PropList.txt).
bool is_other_alphabetic(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool is_letter(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

char32_t to_title(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

// The full case folding of one character, of which Unicode has at most three.
class Folded {
 public:
  explicit Folded(char32_t c) {
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), codes_.data(),
                                               static_cast<utf8proc_ssize_t>(codes_.size()),
                                               UTF8PROC_CASEFOLD, &boundary);
    size_ = count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  [[nodiscard]] std::span<const utf8proc_int32_t> codes() const {
    return std::span(codes_).first(size_);
  }

 private:
  std::array<utf8proc_int32_t, 8> codes_{};
  std::size_t size_ = 0;
};

// Marks and some punctuation stand between letters without ending a word (Unicode 3.13, D136).
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x387 || c == 0x2018 ||
             c == 0x2019 || c == 0x2024 || c == 0x2027;
  }
}

// Returns whether a sigma at `offset` ends a word: a cased letter before it and none after it.
bool is_final_sigma(std::string_view text, std::size_t offset) {
  bool cased_before = false;
  for (std::size_t end = offset; end > 0;) {
    const Decoded previous = decode_before(text, end);
    end -= previous.bytes;
    if (!is_case_ignorable(previous.code)) {
      cased_before = is_cased(previous.code);
      break;
    }
  }
  for (std::size_t at = offset + decode_at(text, offset).bytes; cased_before && at < text.size();) {
    const Decoded next = decode_at(text, at);
    at += next.bytes;
    if (!is_case_ignorable(next.code)) {
      return !is_cased(next.code);
    }
  }
  return cased_before;
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

// Returns the flags of utf8proc_option_t for a form.
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

bool is_python_space(char32_t c) { return (c >= 0x1C && c <= 0x1F) || is_whitespace(c); }

bool is_python_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_python_printable(char32_t c) {
  const auto kind = category(c);
  const bool separator = kind >= UTF8PROC_CATEGORY_ZS && kind <= UTF8PROC_CATEGORY_ZP;
  return c == ' ' || !(separator || is_other(c) || kind == UTF8PROC_CATEGORY_CS ||
                       kind == UTF8PROC_CATEGORY_CN);
}

bool is_python_word(char32_t c) { return c == '_' || is_letter(c) || is_numeric(c); }

bool is_cased(char32_t c) {
  const auto kind = category(c);
  const auto code = static_cast<utf8proc_int32_t>(c);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LT) ||
         utf8proc_isupper(code) != 0 || utf8proc_islower(code) != 0;
}

void append_upper(std::string& out, char32_t c) {
  const Folded folded(c);
  // Every letter whose upper case is longer folds to what the upper case folds to.
  if (folded.codes().size() < 2 || category(c) == UTF8PROC_CATEGORY_LU) {
    append_code_point(out,
                      static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
    return;
  }
  for (const utf8proc_int32_t code : folded.codes()) {
    append_code_point(out, static_cast<char32_t>(utf8proc_toupper(code)));
  }
}

void append_title(std::string& out, char32_t c) {
  const Folded folded(c);
  const auto codes = folded.codes();
  const char32_t title = to_title(c);
  if (codes.size() < 2 || category(c) != UTF8PROC_CATEGORY_LL ||
      category(title) == UTF8PROC_CATEGORY_LT) {
    append_code_point(out, title);
    return;
  }
  bool changed = false;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<char32_t>(codes[i]);
    const bool iota_below = i + 1 == codes.size() && code == 0x3B9;
    const char32_t cased = changed ? (iota_below ? U'\u0345' : code) : to_title(code);
    changed = changed || cased != code;
    append_code_point(out, cased);
  }
}

void append_lower_at(std::string& out, std::string_view text, std::size_t offset) {
  const char32_t c = decode_at(text, offset).code;
  if (c == 0x3A3 && is_final_sigma(text, offset)) {
    append_code_point(out, 0x3C2);
    return;
  }
  append_lower(out, c);
}

std::string to_normal_form(std::string_view text, NormalForm form) {
  const int flags = flags_of(form);
  std::string out;
  out.reserve(text.size());
  // ASCII is its own normal form and only composes as the first of a pair. So only stretches of
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
