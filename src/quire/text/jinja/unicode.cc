#include "quire/text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "quire/text/jinja/casing.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// Unicode property Numeric_Type=Digit: digits that are not decimal.
constexpr CodeRange kOtherDigits[] = {
    {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
    {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
    {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};

// Unicode properties Other_Uppercase and Other_Lowercase.
constexpr CodeRange kOtherUpper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
constexpr CodeRange kOtherLower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};

bool is_in(std::span<const CodeRange> ranges, char32_t code) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const CodeRange& range) {
    return code >= range.first && code <= range.last;
  });
}

constexpr char32_t kSigma = 0x3a3;
constexpr char32_t kFinalSigma = 0x3c2;
constexpr char32_t kDottedCapitalI = 0x130;

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

const SpecialCasing* find_special(char32_t code) {
  const auto* found = std::lower_bound(
      std::begin(kSpecialCasings), std::end(kSpecialCasings), code,
      [](const SpecialCasing& casing, char32_t wanted) { return casing.code < wanted; });
  return found != std::end(kSpecialCasings) && found->code == code ? found : nullptr;
}

void append_all(const char32_t* codes, std::string& out) {
  for (; *codes != 0; ++codes) {
    append_code_point(out, *codes);
  }
}

// Marks and some punctuation stand between letters without ending a word (Unicode 3.13, D136).
bool is_case_ignorable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return code == '\'' || code == '.' || code == ':' || code == 0xb7 || code == 0x387 ||
             code == 0x2018 || code == 0x2019 || code == 0x2024 || code == 0x2027;
  }
}

// Whether a sigma at `at` ends a word: a cased letter before it and none after it.
bool is_final_sigma(std::string_view text, std::size_t at) {
  std::size_t before = at;
  bool cased_before = false;
  while (before > 0 && !cased_before) {
    const Decoded previous = decode_before(text, before);
    before -= previous.bytes;
    if (!is_case_ignorable(previous.code)) {
      if (!is_cased(previous.code)) {
        return false;
      }
      cased_before = true;
    }
  }
  if (!cased_before) {
    return false;
  }
  for (std::size_t after = at + decode_at(text, at).bytes; after < text.size();) {
    const Decoded next = decode_at(text, after);
    after += next.bytes;
    if (!is_case_ignorable(next.code)) {
      return !is_cased(next.code);
    }
  }
  return true;
}

}  // namespace

Decoded decode_at(std::string_view text, std::size_t offset) {
  std::size_t end = offset;
  const char32_t code = next_code_point(text, end);
  return {code, end - offset};
}

Decoded decode_before(std::string_view text, std::size_t offset) {
  std::size_t start = offset - 1;
  while (is_utf8_continuation(text[start])) {
    --start;
  }
  return decode_at(text, start);
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_line_break(char32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

bool is_printable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

bool is_letter(char32_t code) {
  const auto kind = category(code);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_digit(char32_t code) {
  return is_decimal(code) ||
         std::any_of(std::begin(kOtherDigits), std::end(kOtherDigits), [&](const CodeRange& range) {
           return code >= range.first && code <= range.last;
         });
}

bool is_word(char32_t code) {
  const auto kind = category(code);
  return code == '_' || is_letter(code) || kind == UTF8PROC_CATEGORY_ND ||
         kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU || is_in(kOtherUpper, code);
}

bool is_lower(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || is_in(kOtherLower, code);
}

bool is_cased(char32_t code) {
  return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT;
}

bool is_all_of_case(std::string_view text, bool upper) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const Decoded next = decode_at(text, at);
    const bool wanted = upper ? is_upper(next.code) : is_lower(next.code);
    if (!wanted && is_cased(next.code)) {
      return false;
    }
    found = found || wanted;
    at += next.bytes;
  }
  return found;
}

void append_upper(std::string_view text, std::size_t at, std::string& out) {
  const char32_t code = decode_at(text, at).code;
  if (const auto* special = find_special(code)) {
    append_all(special->upper, out);
    return;
  }
  append_code_point(out,
                    static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

void append_lower(std::string_view text, std::size_t at, std::string& out) {
  const char32_t code = decode_at(text, at).code;
  if (code == kDottedCapitalI) {
    append_all(U"i\u0307", out);
  } else if (code == kSigma && is_final_sigma(text, at)) {
    append_code_point(out, kFinalSigma);
  } else {
    append_code_point(out,
                      static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_title(std::string_view text, std::size_t at, std::string& out) {
  const char32_t code = decode_at(text, at).code;
  if (const auto* special = find_special(code)) {
    append_all(special->title, out);
    return;
  }
  append_code_point(out,
                    static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
}

}  // namespace quire::text::jinja
