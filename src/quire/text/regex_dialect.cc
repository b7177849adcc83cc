// translate_pattern: Oniguruma's Ruby syntax, as far as tokenizer files use it, to PCRE2.
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/regex.h"

namespace quire::text {
namespace {

// Oniguruma's \w in Unicode; PCRE2 10.42 has letters, numbers and the underscore only.
constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Six superscripts and fractions of Latin-1, which are of it outside of classes only.
constexpr std::string_view kLoneWords = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
// POSIX classes that hold more in Oniguruma than in PCRE2.
constexpr std::pair<std::string_view, std::string_view> kPosixClasses[] = {
    {"[:alpha:]", R"(\p{Alphabetic})"},
    {"[:^alpha:]", R"(\P{Alphabetic})"},
    {"[:alnum:]", R"(\p{Alphabetic}\p{Nd})"},
    {"[:punct:]", R"(\p{P}\p{S})"},
    {"[:space:]", R"(\p{White_Space})"},
    {"[:^space:]", R"(\P{White_Space})"},
    {"[:word:]", kWordClass}};
constexpr std::string_view kHexClass = "0-9a-fA-F";
constexpr int kMaxDepth = 100;

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (!at_end()) {
      QUIRE_TRY_STATUS(item());
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool at_end() const { return at_ >= in_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool looking_at(std::string_view text) const {
    return in_.substr(at_).starts_with(text);
  }
  [[nodiscard]] Error unsupported(std::string_view what) const {
    return {.code = ErrorCode::kUnsupported,
            .message = base::str_cat("regex ", base::quoted(in_), ": ", what, " at byte ", at_,
                                     " is not supported")};
  }
  void copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  Status item() {
    const char c = peek();
    if (c == '(') {
      return open_group();
    }
    if (c == ')') {
      if (!group_starts_.empty()) {
        atom_start_ = group_starts_.back();
        group_starts_.pop_back();
      }
      copy(1);
      return {};
    }
    if (c == '{' && brace_quantifier() > 0) {
      return repetition();
    }
    if (c == '*' || c == '+' || c == '?' || c == '|') {
      copy(1);
      return {};
    }
    atom_start_ = out_.size();
    if (c == '[') {
      return char_class();
    }
    if (c == '\\') {
      return escape();
    }
    copy(1);
    while (!at_end() && (static_cast<unsigned char>(peek()) & 0xC0) == 0x80) {
      copy(1);  // the rest of one character: a quantifier must apply to all of it
    }
    return {};
  }

  // Bytes of "{n}", "{n,}", "{,m}" or "{n,m}" at the cursor, else 0.
  [[nodiscard]] std::size_t brace_quantifier() const {
    std::size_t length = 1;
    bool digits = false;
    bool comma = false;
    for (; peek(length) != '}'; ++length) {
      const char c = peek(length);
      if (c == ',' && !comma) {
        comma = true;
      } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        digits = true;
      } else {
        return 0;
      }
    }
    return digits ? length + 1 : 0;
  }

  // PCRE2 10.42 has no {,m}; and its x{n,m}+ is possessive, where Ruby's repeats x{n,m}.
  Status repetition() {
    const std::size_t length = brace_quantifier();
    std::string quantifier(in_.substr(at_, length));
    if (quantifier[1] == ',') {
      quantifier.insert(1, "0");
    }
    at_ += length;
    out_ += quantifier;
    if (peek() == '+') {
      out_.insert(atom_start_, "(?:");
      out_ += ')';
    }
    return {};
  }

  Status open_group() {
    if (group_starts_.size() >= kMaxDepth) {
      return unsupported("a group nested over 100 deep");
    }
    group_starts_.push_back(out_.size());
    if (peek(1) == '*') {
      return unsupported("a verb");
    }
    if (peek(1) != '?') {
      copy(1);
      return {};
    }
    for (const std::string_view kept : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (looking_at(kept)) {
        copy(kept.size());
        return {};
      }
    }
    return inline_options();
  }

  // (?i) (?m:...) (?x-i:...): Ruby's m is dot-all.
  Status inline_options() {
    copy(2);
    while (peek() != ')' && peek() != ':') {
      const char option = peek();
      if (option != 'i' && option != 'x' && option != 'm' && option != '-') {
        return unsupported("a group of this kind");
      }
      out_.push_back(option == 'm' ? 's' : option);
      ++at_;
    }
    if (peek() == ')') {
      group_starts_.pop_back();
    }
    copy(1);
    return {};
  }

  Status escape() {
    const char c = peek(1);
    if (c == 'p' || c == 'P') {
      return property();
    }
    const auto emit = [&](std::string_view text) {
      out_ += text;
      at_ += 2;
      return Status();
    };
    const std::string word = base::str_cat("[", kWordClass, kLoneWords, "]");
    switch (c) {
      case 's':
        return emit(R"(\p{White_Space})");
      case 'S':
        return emit(R"(\P{White_Space})");
      case 'w':
        return emit(word);
      case 'W':
        return emit(base::str_cat("[^", kWordClass, kLoneWords, "]"));
      case 'h':
        return emit(base::str_cat("[", kHexClass, "]"));
      case 'H':
        return emit(base::str_cat("[^", kHexClass, "]"));
      case 'b':
        return emit(
            base::str_cat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))"));
      case 'B':
        return emit(
            base::str_cat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
      default:
        return plain_escape();
    }
  }

  // Escapes that mean the same in both dialects, inside and outside classes.
  Status plain_escape() {
    const char c = peek(1);
    const bool letter_or_digit = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (c == '\0' || (letter_or_digit &&
                      std::string_view("adDefnrtvxAZzGR").find(c) == std::string_view::npos)) {
      return unsupported("this escape");
    }
    if (c == 'v') {  // Oniguruma: vertical tab; PCRE2: any vertical space
      out_ += R"(\x0B)";
      at_ += 2;
      return {};
    }
    copy(2);
    const std::size_t close = in_.find('}', at_);
    if (c == 'x' && peek() == '{' && close != std::string_view::npos) {
      copy(close + 1 - at_);
    }
    return {};
  }

  // \p{...}: passed on without a check of the name; \p{^L} is \P{L}.
  Status property() {
    const std::size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) {
      return unsupported("a property without braces");
    }
    std::string name(in_.substr(at_ + 3, close - at_ - 3));
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      name.erase(0, 1);
      negated = !negated;
    }
    out_ += base::str_cat(negated ? "\\P{" : "\\p{", name, "}");
    at_ = close + 1;
    return {};
  }

  // Nested positive classes are unions, so their brackets can go.
  Status char_class() {
    copy(1);
    if (peek() == '^') {
      copy(1);
    }
    if (peek() == ']') {  // first: an ordinary character
      out_ += R"(\])";
      ++at_;
    }
    int depth = 1;
    while (depth > 0) {
      if (at_end()) {
        return {ErrorCode::kInvalidArgument,
                base::str_cat("regex ", base::quoted(in_), ": missing ] at byte ", at_)};
      }
      QUIRE_TRY_STATUS(class_item(depth));
    }
    out_ += ']';
    return {};
  }

  // `depth`: of nested brackets.
  Status class_item(int& depth) {
    if (looking_at("&&")) {
      return unsupported("a class intersection");
    }
    if (looking_at("[:")) {
      return posix_class();
    }
    if (peek() == '\\') {
      return class_escape();
    }
    if (peek() == '[') {
      if (peek(1) == '^' || depth >= kMaxDepth) {
        return unsupported("a negated class inside a class");
      }
      ++depth;
      ++at_;
    } else if (peek() == ']') {
      --depth;
      ++at_;
    } else {
      copy(1);
    }
    return {};
  }

  Status posix_class() {
    const std::size_t close = in_.find(":]", at_);
    if (close == std::string_view::npos) {
      return unsupported("[: without :]");
    }
    const std::string_view name = in_.substr(at_, close + 2 - at_);
    for (const auto& [posix, members] : kPosixClasses) {
      if (posix == name) {
        out_ += members;
        at_ += name.size();
        return {};
      }
    }
    copy(name.size());
    return {};
  }

  Status class_escape() {
    const char c = peek(1);
    if (c == 'p' || c == 'P') {
      return property();
    }
    if (c == 's' || c == 'S') {
      out_ += c == 's' ? R"(\p{White_Space})" : R"(\P{White_Space})";
    } else if (c == 'w') {
      out_ += kWordClass;
    } else if (c == 'h') {
      out_ += kHexClass;
    } else if (c == 'W' || c == 'H' || c == 'b' || c == 'B' || c == 'R') {
      return unsupported("this escape inside a class");
    } else {
      return plain_escape();
    }
    at_ += 2;
    return {};
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_start_ = 0;             // of the last atom, in out_
  std::vector<std::size_t> group_starts_;  // in out_
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace quire::text
