// Template text to tokens, with the white space control of jinja2 (trim_blocks, lstrip_blocks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/error.h"

namespace quire::text::jinja {

enum class TokenKind : std::uint8_t {
  kData,           // literal text
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // text is the value, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// Returns all tokens, ended by one kEnd; comments are gone. kInvalidArgument with the line for
// malformed tokens and tags that are not closed.
Result<std::vector<Token>> tokenize(std::string_view source);

// A position in the tokens. All errors of a parser name the line of the current one.
class TokenStream {
 public:
  // Takes the tokens. Precondition: `tokens` ends with kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const { return tokens_[is(TokenKind::kEnd) ? at_ : at_ + 1]; }
  [[nodiscard]] bool is(TokenKind kind) const { return current().kind == kind; }
  [[nodiscard]] bool is(TokenKind kind, std::string_view text) const {
    return is(kind) && current().text == text;
  }
  [[nodiscard]] bool is_op(std::string_view op) const { return is(TokenKind::kOperator, op); }
  [[nodiscard]] bool is_name(std::string_view name) const { return is(TokenKind::kName, name); }
  // Returns the current token and moves to the next.
  const Token& take() { return tokens_[is(TokenKind::kEnd) ? at_ : at_++]; }
  // Takes the token if it is the one, and returns whether it was.
  bool skip(TokenKind kind, std::string_view text);
  bool skip_op(std::string_view op) { return skip(TokenKind::kOperator, op); }
  bool skip_name(std::string_view name) { return skip(TokenKind::kName, name); }
  Status expect_op(std::string_view op);
  Status expect(TokenKind kind, std::string_view what);

  template <class... Parts>
  [[nodiscard]] Error fail(const Parts&... parts) const {
    return invalid("template line ", current().line, ": ", parts...);
  }
  template <class... Parts>
  [[nodiscard]] Error refuse(const Parts&... parts) const {
    return unsupported("template line ", current().line, ": ", parts...);
  }
  [[nodiscard]] Error fail_expected(std::string_view what) const;

  // Bounds recursion: each success of enter() is followed by leave().
  Status enter();
  void leave() { --depth_; }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace quire::text::jinja
