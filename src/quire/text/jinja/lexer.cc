#include "quire/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kNowhere = std::string_view::npos;
constexpr std::size_t kMaxNameBytes = 256;
constexpr int kMaxNesting = 100;

// Longest first, so that the first match is the longest.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

// Makes all line breaks \n, and drops one at the end.
std::string normalize_line_breaks(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool pair = source.substr(i).starts_with("\r\n");
    out.push_back(source[i] == '\r' ? '\n' : source[i]);
    i += pair ? 1 : 0;
  }
  if (out.ends_with('\n')) {
    out.pop_back();
  }
  return out;
}

std::size_t skip_space(std::string_view text, std::size_t at) {
  while (at < text.size() && is_python_space(decode_at(text, at).code)) {
    at += decode_at(text, at).bytes;
  }
  return at;
}

std::size_t drop_space_before(std::string_view text, std::size_t end, std::size_t begin) {
  while (end > begin && is_python_space(decode_before(text, end).code)) {
    end -= decode_before(text, end).bytes;
  }
  return end;
}

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
    line_ += static_cast<int>(std::ranges::count(view_.substr(at_, end - at_), '\n'));
    line_starting_ = end > at_ ? view_[end - 1] == '\n' : line_starting_;
    at_ = end;
  }

  // Emits what is at the current place and moves behind it.
  void emit_until(TokenKind kind, std::size_t end) {
    emit(kind, view_.substr(at_, end - at_));
    advance(end);
  }

  [[nodiscard]] bool starts(std::size_t at, std::string_view what) const {
    return view_.substr(std::min(at, view_.size())).starts_with(what);
  }

  [[nodiscard]] std::size_t find_tag() const {
    std::size_t brace = view_.find('{', at_);
    while (brace != kNowhere && !starts(brace, "{%") && !starts(brace, "{{") &&
           !starts(brace, "{#")) {
      brace = view_.find('{', brace + 1);
    }
    return brace;
  }

  // Reads one piece of literal text and the tag after it.
  Status next_tag() {
    const std::size_t tag = find_tag();
    if (tag == kNowhere) {
      emit_until(TokenKind::kData, view_.size());
      return {};
    }
    const char kind = view_[tag + 1];
    const bool strips = starts(tag + 2, "-");
    emit_data(tag, strips, kind != '{');
    const std::size_t inside = tag + (strips ? 3 : 2);
    if (kind == '#') {
      return comment(inside);
    }
    emit(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, view_.substr(tag, 2));
    advance(inside);
    return code(kind == '%' ? "%}" : "}}");
  }

  // Emits the text in front of the tag at `tag`, without the white space that the tag strips.
  void emit_data(std::size_t tag, bool strips, bool strips_line) {
    std::size_t end = strips ? drop_space_before(view_, tag, at_) : tag;
    if (!strips && strips_line) {
      const std::size_t line_break = view_.substr(at_, tag - at_).rfind('\n');
      const std::size_t line = line_break == kNowhere ? at_ : at_ + line_break + 1;
      const bool is_line = line_break != kNowhere || line_starting_;
      end = is_line && drop_space_before(view_, tag, line) == line ? line : end;
    }
    if (end > at_) {
      emit(TokenKind::kData, view_.substr(at_, end - at_));
    }
    advance(tag);
  }

  Status comment(std::size_t inside) {
    const std::size_t close = view_.find("#}", inside);
    if (close == kNowhere) {
      return fail("missing end of comment tag");
    }
    advance(after_close(close + 2, close > inside && view_[close - 1] == '-'));
    return {};
  }

  // Returns the offset after a closing tag that ends at `end`, and after what it swallows.
  [[nodiscard]] std::size_t after_close(std::size_t end, bool strips) const {
    return strips ? skip_space(view_, end) : starts(end, "\n") ? end + 1 : end;
  }

  // Reads tokens up to `close`, which may only come outside of brackets.
  Status code(std::string_view close) {
    int brackets = 0;  // open
    while (brackets != 0 || !take_close(close)) {
      const std::size_t start = skip_space(view_, at_);
      if (start >= view_.size()) {
        return fail("unexpected end of template, expected '", close, "'");
      }
      if (start != at_) {
        advance(start);
      } else {
        QUIRE_TRY_STATUS(token(brackets));
      }
    }
    return {};
  }

  bool take_close(std::string_view close) {
    const bool strips = starts(at_, "-") && starts(at_ + 1, close);
    if (!strips && !starts(at_, close)) {
      return false;
    }
    const bool block = close == "%}";
    emit(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, close);
    const std::size_t end = at_ + (strips ? 3 : 2);
    // Only block tags swallow the line break behind them.
    advance(block || strips ? after_close(end, strips) : end);
    return true;
  }

  Status token(int& brackets) {
    const char c = view_[at_];
    if (c >= '0' && c <= '9') {
      return take_number();
    }
    if (c == '\'' || c == '"') {
      return take_string(c);
    }
    if (is_python_word(decode_at(view_, at_).code)) {
      return take_name();
    }
    const auto* const op =
        std::ranges::find_if(kOperators, [this](auto known) { return starts(at_, known); });
    if (op == kOperators.end()) {
      return fail("unexpected character ",
                  base::quoted(view_.substr(at_, decode_at(view_, at_).bytes)));
    }
    constexpr std::string_view kOpen = "([{";
    constexpr std::string_view kClose = ")]}";
    brackets += kOpen.find(*op) != kNowhere ? 1 : kClose.find(*op) != kNowhere ? -1 : 0;
    if (brackets < 0) {
      return fail("unexpected '", *op, "'");
    }
    emit_until(TokenKind::kOperator, at_ + op->size());
    return {};
  }

  Status take_name() {
    std::size_t end = at_;
    while (end < view_.size() && is_python_word(decode_at(view_, end).code)) {
      end += decode_at(view_, end).bytes;
    }
    if (end - at_ > kMaxNameBytes) {
      return fail("a name is longer than ", kMaxNameBytes, " bytes");
    }
    emit_until(TokenKind::kName, end);
    return {};
  }

  // Takes digits, and unless they follow a dot (x.0), perhaps a fraction and an exponent.
  Status take_number() {
    const auto skip_digits = [this](std::size_t at) {
      return std::min(view_.find_first_not_of("0123456789", at), view_.size());
    };
    const std::size_t whole = skip_digits(at_);
    std::size_t end = whole;
    if (at_ == 0 || view_[at_ - 1] != '.') {
      const std::size_t fraction = starts(end, ".") ? skip_digits(end + 1) : 0;
      end = fraction > end + 1 ? fraction : end;
      const bool exponent = starts(end, "e") || starts(end, "E");
      const std::size_t digits = end + (starts(end + 1, "+") || starts(end + 1, "-") ? 2 : 1);
      end = exponent && skip_digits(digits) > digits ? skip_digits(digits) : end;
    }
    const bool leading_zero = whole > at_ + 1 && view_[at_] == '0';
    if (leading_zero || (end < view_.size() && is_python_word(decode_at(view_, end).code))) {
      return unsupported("template line ", line_, ": a number that begins with '",
                         view_.substr(at_, end + 1 - at_), "'");
    }
    emit_until(end > whole ? TokenKind::kFloat : TokenKind::kInteger, end);
    return {};
  }

  Status take_string(char quote) {
    std::string value;
    std::size_t end = at_ + 1;
    while (end < view_.size() && view_[end] != quote) {
      if (view_[end] == '\\') {
        QUIRE_TRY_STATUS(unescape(end, value));
      } else {
        value.push_back(view_[end++]);
      }
    }
    if (end >= view_.size()) {
      return fail("string is not closed");
    }
    emit(TokenKind::kString, value);
    advance(end + 1);
    return {};
  }

  // Reads one escape sequence of a Python string literal; moves `at` behind it.
  Status unescape(std::size_t& at, std::string& value) const {
    constexpr std::string_view kPlain = "\\'\"bfnrt";
    constexpr std::string_view kMeaning = "\\'\"\b\f\n\r\t";
    const char c = at + 1 < view_.size() ? view_[at + 1] : '\0';
    if (std::string_view("\navNxuU01234567").find(c) != kNowhere) {
      return unsupported("template line ", line_, ": the escape ",
                         base::quoted(view_.substr(at, 2)), " in a string");
    }
    const std::size_t plain = kPlain.find(c);
    value.push_back(plain == kNowhere ? '\\' : kMeaning[plain]);
    at += plain == kNowhere ? 1 : 2;
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
  return Lexer(normalize_line_breaks(source)).run();
}

bool TokenStream::skip(TokenKind kind, std::string_view text) {
  const bool found = is(kind, text);
  at_ += found ? 1 : 0;
  return found;
}

Status TokenStream::expect_op(std::string_view op) {
  return skip_op(op) ? Status() : fail_expected(base::str_cat("'", op, "'"));
}

Status TokenStream::expect(TokenKind kind, std::string_view what) {
  if (!is(kind)) {
    return fail_expected(what);
  }
  take();
  return {};
}

Error TokenStream::fail_expected(std::string_view what) const {
  return is(TokenKind::kEnd) ? fail("unexpected end of template, expected ", what)
                             : fail("expected ", what, ", got ", base::quoted(current().text));
}

Status TokenStream::enter() {
  if (depth_ >= kMaxNesting) {
    return fail("the template nests deeper than ", kMaxNesting);
  }
  ++depth_;
  return {};
}

}  // namespace quire::text::jinja
