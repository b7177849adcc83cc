// Expressions of the template language, by recursive descent over jinja2's levels of precedence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/lexer.h"
#include "quire/text/jinja/runtime.h"

namespace quire::text::jinja {

// Numbers names in the order of their first use.
class SymbolTable {
 public:
  SymbolTable();
  Symbol intern(const std::string& name);
  [[nodiscard]] std::vector<std::string> take_names() && { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, Symbol> symbols_;
};

// A position in the tokens. All the parser's errors name the line of the current one.
class TokenStream {
 public:
  // Precondition: `tokens` ends with kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const {
    return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_];
  }
  [[nodiscard]] bool is(TokenKind kind) const { return current().kind == kind; }
  [[nodiscard]] bool is_op(std::string_view op) const {
    return is(TokenKind::kOperator) && current().text == op;
  }
  [[nodiscard]] bool is_name(std::string_view name) const {
    return is(TokenKind::kName) && current().text == name;
  }
  // The current token, moving to the next.
  const Token& take() {
    const Token& token = tokens_[at_];
    at_ += at_ + 1 < tokens_.size() ? 1 : 0;
    return token;
  }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  Status expect_op(std::string_view op);
  Status expect(TokenKind kind, std::string_view what);

  template <class... Parts>
  [[nodiscard]] Error fail(const Parts&... parts) const {
    return invalid("template line ", current().line, ": ", parts...);
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

// Which of a macro's special names its body uses.
struct SpecialUse {
  bool caller = false;
  bool varargs = false;
  bool kwargs = false;
};

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, SymbolTable& symbols)
      : tokens_(tokens), symbols_(symbols) {}

  [[nodiscard]] Result<ExprPtr> expression(bool with_conditional = true);
  // Expressions with commas between them make a tuple. `end_name` is a name that ends it too.
  [[nodiscard]] Result<ExprPtr> tuple(bool with_conditional = true, std::string_view end_name = {},
                                      bool in_parentheses = false);
  // name(arguments), any number of them with | between; the first has no input if `input` is null.
  [[nodiscard]] Result<ExprPtr> filters(ExprPtr input, bool starts_with_name);

  // Unknown filters and tests are errors where they are certain to be compiled by jinja2. They are
  // remembered in order of appearance: an `if` forgives those since `mark`, a block that makes a
  // frame of its own reports the first since `mark`.
  [[nodiscard]] std::size_t mark() const { return unknown_.size(); }
  void forgive_unknown(std::size_t mark) { unknown_.resize(mark); }
  Status report_unknown(std::size_t mark) const;

  // Uses of special names since the innermost begin_macro.
  void begin_macro() { special_uses_.emplace_back(); }
  [[nodiscard]] SpecialUse end_macro();

 private:
  [[nodiscard]] Result<ExprPtr> conditional();
  [[nodiscard]] Result<ExprPtr> logical_or();
  [[nodiscard]] Result<ExprPtr> logical_and();
  [[nodiscard]] Result<ExprPtr> logical_not();
  [[nodiscard]] Result<ExprPtr> compare();
  [[nodiscard]] Result<ExprPtr> sum();
  [[nodiscard]] Result<ExprPtr> concat();
  [[nodiscard]] Result<ExprPtr> product();
  [[nodiscard]] Result<ExprPtr> power();
  [[nodiscard]] Result<ExprPtr> unary(bool with_filters);
  [[nodiscard]] Result<ExprPtr> primary();
  [[nodiscard]] Result<ExprPtr> name();
  [[nodiscard]] Result<ExprPtr> number();
  [[nodiscard]] Result<ExprPtr> list();
  [[nodiscard]] Result<ExprPtr> dict();
  [[nodiscard]] Result<ExprPtr> postfix(ExprPtr operand);
  [[nodiscard]] Result<ExprPtr> postfix_filters(ExprPtr operand);
  [[nodiscard]] Result<ExprPtr> subscript(ExprPtr operand);
  [[nodiscard]] Result<ExprPtr> call(ExprPtr callee);
  [[nodiscard]] Result<ExprPtr> test(ExprPtr operand);
  [[nodiscard]] Result<std::vector<ExprPtr>> subscript_parts(ExprPtr operand, bool& is_slice);
  [[nodiscard]] Result<ArgumentExprs> arguments();
  Status argument(ArgumentExprs& arguments);
  [[nodiscard]] Result<std::string> dotted_name();
  [[nodiscard]] bool next_comparison(Comparison& comparison);
  // Sets the height; an error if it is too high.
  [[nodiscard]] Result<ExprPtr> finish(Expr node) const;
  [[nodiscard]] Expr node(ExprKind kind) const;

  TokenStream& tokens_;
  SymbolTable& symbols_;
  std::vector<Error> unknown_;
  std::vector<SpecialUse> special_uses_;
};

}  // namespace quire::text::jinja
