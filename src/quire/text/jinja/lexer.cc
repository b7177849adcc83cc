#include "quire/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kNowhere = std::string_view::npos;

constexpr std::size_t kMaxNameBytes = 256;

// Longest first, so that the first match is the longest.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

// All line breaks as \n, and one at the end dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) {
    out.pop_back();
  }
  return out;
}

std::size_t skip_space(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Decoded next = decode_at(text, at);
    if (!is_space(next.code)) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

std::size_t drop_space_before(std::string_view text, std::size_t end, std::size_t begin) {
  while (end > begin) {
    const Decoded previous = decode_before(text, end);
    if (!is_space(previous.code)) {
      break;
    }
    end -= previous.bytes;
  }
  return end;
}

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), view_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < view_.size()) {
      QUIRE_TRY_STATUS(next_tag());
    }
    emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <class... Parts>
  [[nodiscard]] Error fail(const Parts&... parts) const {
    return invalid("template line ", line_, ": ", parts...);
  }

  void emit(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  // Moves to `end`, counting lines.
  void advance(std::size_t end) {
    line_ += static_cast<int>(std::count(view_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         view_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    line_starting_ = end > at_ ? view_[end - 1] == '\n' : line_starting_;
    at_ = end;
  }

  [[nodiscard]] bool starts(std::size_t at, std::string_view what) const {
    return view_.substr(std::min(at, view_.size())).starts_with(what);
  }

  // Emits the text in front of the tag at `tag`, without the white space that the tag strips.
  void emit_data(std::size_t tag, char sign, bool strips_line) {
    std::size_t end = tag;
    if (sign == '-') {
      end = drop_space_before(view_, tag, at_);
    } else if (sign != '+' && strips_line) {
      const std::size_t line_break = view_.substr(at_, tag - at_).rfind('\n');
      const std::size_t line = line_break == kNowhere ? at_ : at_ + line_break + 1;
      if ((line_break != kNowhere || line_starting_) &&
          drop_space_before(view_, tag, line) == line) {
        end = line;
      }
    }
    if (end > at_) {
      emit(TokenKind::kData, view_.substr(at_, end - at_));
    }
    advance(tag);
  }

  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t brace = view_.find('{', at_); brace != kNowhere;
         brace = view_.find('{', brace + 1)) {
      if (starts(brace + 1, "%") || starts(brace + 1, "{") || starts(brace + 1, "#")) {
        return brace;
      }
    }
    return kNowhere;
  }

  // One piece of literal text and the tag after it.
  Status next_tag() {
    const std::size_t tag = find_tag();
    if (tag == kNowhere) {
      emit(TokenKind::kData, view_.substr(at_));
      advance(view_.size());
      return {};
    }
    const char kind = view_[tag + 1];
    const char next = tag + 2 < view_.size() ? view_[tag + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    emit_data(tag, sign, kind != '{');
    const std::size_t inside = tag + 2 + (sign != '\0' ? 1 : 0);
    if (kind == '#') {
      return comment(inside);
    }
    if (const auto raw = kind == '%' ? raw_begin(inside) : std::nullopt) {
      return raw_block(*raw);
    }
    emit(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, view_.substr(tag, 2));
    advance(inside);
    return code(kind == '%' ? "%}" : "}}");
  }

  Status comment(std::size_t inside) {
    const std::size_t close = view_.find("#}", inside);
    if (close == kNowhere) {
      return fail("missing end of comment tag");
    }
    const bool strips = close > inside && view_[close - 1] == '-';
    const bool keeps = close > inside && view_[close - 1] == '+';
    advance(after_close(close + 2, strips, keeps));
    return {};
  }

  // The offset after a closing tag that ends at `end`, its sign and what it swallows.
  [[nodiscard]] std::size_t after_close(std::size_t end, bool strips, bool keeps) const {
    if (strips) {
      return skip_space(view_, end);
    }
    return !keeps && starts(end, "\n") ? end + 1 : end;
  }

  // Where the text of a raw block begins, if the tag whose inside is at `inside` opens one.
  [[nodiscard]] std::optional<std::size_t> raw_begin(std::size_t inside) const {
    const std::size_t name = skip_space(view_, inside);
    if (!starts(name, "raw")) {
      return std::nullopt;
    }
    const std::size_t end = skip_space(view_, name + 3);
    if (starts(end, "-%}")) {
      return skip_space(view_, end + 3);
    }
    return starts(end, "%}") ? std::optional(end + 2) : std::nullopt;
  }

  Status raw_block(std::size_t begin) {
    advance(begin);
    for (std::size_t tag = view_.find("{%", at_); tag != kNowhere;
         tag = view_.find("{%", tag + 2)) {
      const char next = tag + 2 < view_.size() ? view_[tag + 2] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      const std::size_t name = skip_space(view_, tag + 2 + (sign != '\0' ? 1 : 0));
      const std::size_t end = starts(name, "endraw") ? skip_space(view_, name + 6) : view_.size();
      const bool strips = starts(end, "-%}");
      const bool keeps = starts(end, "+%}");
      if (strips || keeps || starts(end, "%}")) {
        emit_data(tag, sign, true);
        advance(after_close(end + (strips || keeps ? 3 : 2), strips, keeps));
        return {};
      }
    }
    return fail("missing end of raw directive");
  }

  // Tokens up to `close`, which may only come outside of brackets.
  Status code(std::string_view close) {
    std::vector<char> brackets;
    for (;;) {
      if (brackets.empty() && take_close(close)) {
        return {};
      }
      const std::size_t start = skip_space(view_, at_);
      if (start >= view_.size()) {
        return fail("unexpected end of template, expected '", close, "'");
      }
      if (start != at_) {
        advance(start);
        continue;
      }
      QUIRE_TRY_STATUS(token(brackets));
    }
  }

  bool take_close(std::string_view close) {
    const bool block = close == "%}";
    const bool strips = starts(at_, "-") && starts(at_ + 1, close);
    const bool keeps = block && starts(at_, "+") && starts(at_ + 1, close);
    if (!strips && !keeps && !starts(at_, close)) {
      return false;
    }
    emit(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, close);
    const std::size_t end = at_ + (strips || keeps ? 3 : 2);
    // Only block tags swallow the line break behind them.
    advance(block || strips ? after_close(end, strips, keeps) : end);
    return true;
  }

  Status token(std::vector<char>& brackets) {
    const char c = view_[at_];
    if (is_ascii_digit(c)) {
      take_number();
      return {};
    }
    if (c == '\'' || c == '"') {
      return take_string(c);
    }
    if (is_word(decode_at(view_, at_).code)) {
      return take_name();
    }
    const auto* const op =
        std::ranges::find_if(kOperators, [this](auto known) { return starts(at_, known); });
    if (op == kOperators.end()) {
      return fail("unexpected character ",
                  base::quoted(view_.substr(at_, decode_at(view_, at_).bytes)));
    }
    QUIRE_TRY_STATUS(balance(op->front(), brackets));
    emit(TokenKind::kOperator, *op);
    advance(at_ + op->size());
    return {};
  }

  Status balance(char c, std::vector<char>& brackets) const {
    if (c == '(' || c == '[' || c == '{') {
      brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) {
        return fail("unexpected '", c, "'");
      }
      if (brackets.back() != c) {
        return fail("unexpected '", c, "', expected '", brackets.back(), "'");
      }
      brackets.pop_back();
    }
    return {};
  }

  Status take_name() {
    std::size_t end = at_;
    while (end < view_.size() && is_word(decode_at(view_, end).code)) {
      end += decode_at(view_, end).bytes;
    }
    if (end - at_ > kMaxNameBytes) {
      return fail("a name is longer than ", kMaxNameBytes, " bytes");
    }
    emit(TokenKind::kName, view_.substr(at_, end - at_));
    advance(end);
    return {};
  }

  // Digits of `allowed` with single underscores between them; returns the end.
  [[nodiscard]] std::size_t digits_end(std::size_t at, bool (*allowed)(char)) const {
    std::size_t end = at;
    while (end < view_.size() &&
           (allowed(view_[end]) ||
            (view_[end] == '_' && end > at && end + 1 < view_.size() && allowed(view_[end + 1])))) {
      ++end;
    }
    return end;
  }

  // After the integer part at [at_, whole): the end of a fraction and exponent, or `whole`.
  [[nodiscard]] std::size_t float_end(std::size_t whole) const {
    std::size_t end = whole;
    if (starts(end, ".") && digits_end(end + 1, is_ascii_digit) > end + 1) {
      end = digits_end(end + 1, is_ascii_digit);
    }
    if (starts(end, "e") || starts(end, "E")) {
      const std::size_t digits = end + (starts(end + 1, "+") || starts(end + 1, "-") ? 2 : 1);
      if (digits_end(digits, is_ascii_digit) > digits) {
        end = digits_end(digits, is_ascii_digit);
      }
    }
    return end;
  }

  void take_number() {
    const bool after_dot = at_ > 0 && view_[at_ - 1] == '.';
    const std::size_t whole = digits_end(at_, is_ascii_digit);
    std::size_t end = after_dot ? whole : float_end(whole);
    if (end > whole) {
      emit(TokenKind::kFloat, view_.substr(at_, end - at_));
      advance(end);
      return;
    }
    end = integer_end(whole);
    emit(TokenKind::kInteger, view_.substr(at_, end - at_));
    advance(end);
  }

  // A number with a prefix, a number without leading zeros, or zeros.
  [[nodiscard]] std::size_t integer_end(std::size_t whole) const {
    if (view_[at_] != '0') {
      return whole;
    }
    bool (*allowed)(char) = nullptr;
    switch (at_ + 1 < view_.size() ? std::tolower(static_cast<unsigned char>(view_[at_ + 1])) : 0) {
      case 'x':
        allowed = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
        break;
      case 'o':
        allowed = [](char c) { return c >= '0' && c <= '7'; };
        break;
      case 'b':
        allowed = [](char c) { return c == '0' || c == '1'; };
        break;
      default:
        return digits_end(at_, [](char c) { return c == '0'; });
    }
    const std::size_t digits = at_ + 2 + (starts(at_ + 2, "_") ? 1 : 0);
    const std::size_t end = digits_end(digits, allowed);
    return end > digits ? end : at_ + 1;
  }

  Status take_string(char quote) {
    std::string value;
    std::size_t end = at_ + 1;
    while (end < view_.size() && view_[end] != quote) {
      if (view_[end] != '\\') {
        value.push_back(view_[end++]);
        continue;
      }
      QUIRE_TRY_STATUS(unescape(end, value));
    }
    if (end >= view_.size()) {
      return fail("string is not closed");
    }
    emit(TokenKind::kString, value);
    advance(end + 1);
    return {};
  }

  // One escape sequence of a Python string literal; moves `at` behind it.
  Status unescape(std::size_t& at, std::string& value) const {
    constexpr std::string_view kPlain = "\\'\"abfnrtv";
    constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
    if (at + 1 >= view_.size()) {
      return fail("string is not closed");
    }
    const char c = view_[at + 1];
    if (const std::size_t plain = kPlain.find(c); plain != kNowhere) {
      value.push_back(kMeaning[plain]);
      at += 2;
      return {};
    }
    switch (c) {
      case '\n':
        at += 2;
        return {};
      case 'x':
        return unescape_code(at, 2, 2, 16, value);
      case 'u':
        return unescape_code(at, 2, 4, 16, value);
      case 'U':
        return unescape_code(at, 2, 8, 16, value);
      case 'N':
        return unsupported("template line ", line_, ": \\N{...} is not supported in strings");
      default:
        break;
    }
    if (c >= '0' && c <= '7') {
      std::size_t digits = 1;
      while (digits < 3 && at + 1 + digits < view_.size() && view_[at + 1 + digits] >= '0' &&
             view_[at + 1 + digits] <= '7') {
        ++digits;
      }
      return unescape_code(at, 1, digits, 8, value);
    }
    value.push_back('\\');
    ++at;
    return {};
  }

  // The code point of `count` digits after `skip` characters of the escape at `at`.
  Status unescape_code(std::size_t& at, std::size_t skip, std::size_t count, int base,
                       std::string& value) const {
    char32_t code = 0;
    for (std::size_t i = at + skip; i < at + skip + count; ++i) {
      const auto digit = i < view_.size() ? static_cast<unsigned char>(view_[i]) : '\0';
      if (std::isxdigit(digit) == 0) {
        return fail("truncated escape in a string");
      }
      const int number = std::isdigit(digit) != 0 ? digit - '0' : std::tolower(digit) - 'a' + 10;
      code = (code * static_cast<char32_t>(base)) + static_cast<char32_t>(number);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      return fail("an escape in a string names no character");
    }
    append_code_point(value, code);
    at += skip + count;
    return {};
  }

  std::string source_;
  std::string_view view_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last match ended a line, or nothing was matched yet
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (const std::size_t bad = valid_utf8_prefix(source); bad != source.size()) {
    return invalid("the template is no UTF-8 at byte ", bad);
  }
  return Lexer(normalize(source)).run();
}

}  // namespace quire::text::jinja
