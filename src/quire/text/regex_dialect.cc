// translate_pattern: Oniguruma's Ruby syntax, as far as tokenizer files use it, to PCRE2.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/regex.h"
#include "quire/text/utf8.h"

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

// A pattern on its way into the other dialect: what was read of it, and the translation so far.
class Cursor {
 public:
  explicit Cursor(std::string_view pattern) : in_(pattern) {}

  [[nodiscard]] bool at_end() const { return at_ >= in_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool looking_at(std::string_view text) const {
    return in_.substr(at_).starts_with(text);
  }
  // Returns the bytes to the end of the next `end`, or 0 where none follows.
  [[nodiscard]] std::size_t length_through(std::string_view end) const {
    const std::size_t found = in_.find(end, at_);
    return found == std::string_view::npos ? 0 : found + end.size() - at_;
  }
  [[nodiscard]] std::string_view next(std::size_t count) const { return in_.substr(at_, count); }

  void copy(std::size_t count) { write_for(count, in_.substr(at_, count)); }
  // Passes `count` bytes of the pattern, for which `text` is written.
  void write_for(std::size_t count, std::string_view text) {
    out_ += text;
    at_ += count;
  }
  // Returns the bytes written so far: the place of what is written next.
  [[nodiscard]] std::size_t written() const { return out_.size(); }
  void insert(std::size_t place, std::string_view text) { out_.insert(place, text); }
  [[nodiscard]] std::string take() { return std::move(out_); }

  [[nodiscard]] Error unsupported(std::string_view what) const {
    return {.code = ErrorCode::kUnsupported,
            .message = base::str_cat("regex ", base::quoted(in_), ": ", what, " at byte ", at_,
                                     " is not supported")};
  }
  [[nodiscard]] Error missing(std::string_view what) const {
    return {.code = ErrorCode::kInvalidArgument,
            .message =
                base::str_cat("regex ", base::quoted(in_), ": missing ", what, " at byte ", at_)};
  }

 private:
  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
};

// Translates an escape that means the same in both dialects, inside and outside of classes.
Status translate_plain_escape(Cursor& cursor) {
  const char c = cursor.peek(1);
  const bool letter_or_digit = std::isalnum(static_cast<unsigned char>(c)) != 0;
  if (c == '\0' ||
      (letter_or_digit && std::string_view("adDefnrtvxAZzGR").find(c) == std::string_view::npos)) {
    return cursor.unsupported("this escape");
  }
  if (c == 'v') {  // Oniguruma: vertical tab; PCRE2: any vertical space
    cursor.write_for(2, R"(\x0B)");
    return {};
  }
  cursor.copy(2);
  if (c == 'x' && cursor.peek() == '{') {
    cursor.copy(cursor.length_through("}"));
  }
  return {};
}

// Translates \p{...}, whose name is passed on without a check; \p{^L} is \P{L}.
Status translate_property(Cursor& cursor) {
  const std::size_t length = cursor.length_through("}");
  if (cursor.peek(2) != '{' || length == 0) {
    return cursor.unsupported("a property without braces");
  }
  std::string name(cursor.next(length).substr(3));
  bool negated = cursor.peek(1) == 'P';
  if (name.starts_with('^')) {
    name.erase(0, 1);
    negated = !negated;
  }
  cursor.write_for(length, base::str_cat(negated ? "\\P{" : "\\p{", name));
  return {};
}

// Translates an escape outside of classes.
Status translate_escape(Cursor& cursor) {
  const std::string word = base::str_cat("[", kWordClass, kLoneWords, "]");
  const auto border = [&](std::string_view before, std::string_view other) {
    return base::str_cat("(?:(?<=", word, ")(?", before, word, ")|(?<!", word, ")(?", other, word,
                         "))");
  };
  const auto emit = [&](std::string_view text) {
    cursor.write_for(2, text);
    return Status();
  };
  switch (cursor.peek(1)) {
    case 'p':
    case 'P':
      return translate_property(cursor);
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
      return emit(border("!", "="));
    case 'B':
      return emit(border("=", "!"));
    default:
      return translate_plain_escape(cursor);
  }
}

// Translates an escape inside of a class.
Status translate_class_escape(Cursor& cursor) {
  switch (cursor.peek(1)) {
    case 'p':
    case 'P':
      return translate_property(cursor);
    case 's':
      cursor.write_for(2, R"(\p{White_Space})");
      return {};
    case 'S':
      cursor.write_for(2, R"(\P{White_Space})");
      return {};
    case 'w':
      cursor.write_for(2, kWordClass);
      return {};
    case 'h':
      cursor.write_for(2, kHexClass);
      return {};
    case 'W':
    case 'H':
    case 'b':
    case 'B':
    case 'R':
      return cursor.unsupported("this escape inside a class");
    default:
      return translate_plain_escape(cursor);
  }
}

Status translate_posix_class(Cursor& cursor) {
  const std::size_t length = cursor.length_through(":]");
  if (length == 0) {
    return cursor.unsupported("[: without :]");
  }
  const std::string_view name = cursor.next(length);
  const auto* const found =
      std::ranges::find(kPosixClasses, name, &std::pair<std::string_view, std::string_view>::first);
  cursor.write_for(length, found != std::end(kPosixClasses) ? found->second : name);
  return {};
}

// Translates one item of a class; `depth` counts its nested brackets.
Status translate_class_item(Cursor& cursor, int& depth) {
  if (cursor.looking_at("&&")) {
    return cursor.unsupported("a class intersection");
  }
  if (cursor.looking_at("[:")) {
    return translate_posix_class(cursor);
  }
  if (cursor.peek() == '\\') {
    return translate_class_escape(cursor);
  }
  if (cursor.peek() == '[') {
    if (cursor.peek(1) == '^' || depth >= kMaxDepth) {
      return cursor.unsupported("a negated class inside a class");
    }
    ++depth;
    cursor.write_for(1, "");
  } else if (cursor.peek() == ']') {
    --depth;
    cursor.write_for(1, "");
  } else {
    cursor.copy(1);
  }
  return {};
}

// Translates a class. Nested positive classes are unions, so their brackets can go.
Status translate_class(Cursor& cursor) {
  cursor.copy(1);
  if (cursor.peek() == '^') {
    cursor.copy(1);
  }
  if (cursor.peek() == ']') {  // first: an ordinary character
    cursor.write_for(1, R"(\])");
  }
  int depth = 1;
  while (depth > 0) {
    if (cursor.at_end()) {
      return cursor.missing("]");
    }
    QUIRE_TRY_STATUS(translate_class_item(cursor, depth));
  }
  cursor.write_for(0, "]");
  return {};
}

// Translates what opens and closes groups, and remembers where they start.
class GroupTranslator {
 public:
  explicit GroupTranslator(Cursor& cursor) : cursor_(cursor) {}

  Status open() {
    if (starts_.size() >= kMaxDepth) {
      return cursor_.unsupported("a group nested over 100 deep");
    }
    starts_.push_back(cursor_.written());
    if (cursor_.peek(1) == '*') {
      return cursor_.unsupported("a verb");
    }
    if (cursor_.peek(1) != '?') {
      cursor_.copy(1);
      return {};
    }
    for (const std::string_view kept : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (cursor_.looking_at(kept)) {
        cursor_.copy(kept.size());
        return {};
      }
    }
    return inline_options();
  }

  // Returns where the group starts that ends here, if one was open.
  std::optional<std::size_t> close() {
    cursor_.copy(1);
    if (starts_.empty()) {
      return std::nullopt;
    }
    const std::size_t start = starts_.back();
    starts_.pop_back();
    return start;
  }

 private:
  // Translates (?i) (?m:...) (?x-i:...): Ruby's m is dot-all.
  Status inline_options() {
    cursor_.copy(2);
    while (cursor_.peek() != ')' && cursor_.peek() != ':') {
      const char option = cursor_.peek();
      if (option != 'i' && option != 'x' && option != 'm' && option != '-') {
        return cursor_.unsupported("a group of this kind");
      }
      cursor_.write_for(1, {option == 'm' ? "s" : &option, 1});
    }
    if (cursor_.peek() == ')') {
      starts_.pop_back();
    }
    cursor_.copy(1);
    return {};
  }

  Cursor& cursor_;
  std::vector<std::size_t> starts_;  // in what is written
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : cursor_(pattern), groups_(cursor_) {}

  Result<std::string> run() {
    while (!cursor_.at_end()) {
      QUIRE_TRY_STATUS(item());
    }
    return cursor_.take();
  }

 private:
  Status item() {
    const char c = cursor_.peek();
    if (c == '(') {
      return groups_.open();
    }
    if (c == ')') {
      atom_start_ = groups_.close().value_or(atom_start_);
      return {};
    }
    if (c == '{' && brace_quantifier() > 0) {
      return repetition();
    }
    if (c == '*' || c == '+' || c == '?' || c == '|') {
      cursor_.copy(1);
      return {};
    }
    atom_start_ = cursor_.written();
    if (c == '[') {
      return translate_class(cursor_);
    }
    if (c == '\\') {
      return translate_escape(cursor_);
    }
    cursor_.copy(1);
    while (!cursor_.at_end() && is_utf8_continuation(cursor_.peek())) {
      cursor_.copy(1);  // the rest of one character: a quantifier must apply to all of it
    }
    return {};
  }

  // Returns the bytes of "{n}", "{n,}", "{,m}" or "{n,m}" at the cursor, else 0.
  [[nodiscard]] std::size_t brace_quantifier() const {
    std::size_t length = 1;
    bool digits = false;
    bool comma = false;
    for (; cursor_.peek(length) != '}'; ++length) {
      const char c = cursor_.peek(length);
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

  // Translates a quantifier in braces. PCRE2 10.42 has no {,m}; and its x{n,m}+ is possessive,
  // where Ruby's repeats x{n,m}.
  Status repetition() {
    const std::size_t length = brace_quantifier();
    std::string quantifier(cursor_.next(length));
    if (quantifier[1] == ',') {
      quantifier.insert(1, "0");
    }
    cursor_.write_for(length, quantifier);
    if (cursor_.peek() == '+') {
      cursor_.insert(atom_start_, "(?:");
      cursor_.write_for(0, ")");
    }
    return {};
  }

  Cursor cursor_;
  GroupTranslator groups_;
  std::size_t atom_start_ = 0;  // start of the last atom in the written pattern
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace quire::text
