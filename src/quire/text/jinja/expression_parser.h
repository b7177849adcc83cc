// Expressions of the template language, by precedence climbing over jinja2's levels.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/lexer.h"

namespace quire::text::jinja {

// Numbers names in the order of their first use, and notes which ones are looked up before they are
// certainly set.
class SymbolTable {
 public:
  SymbolTable();
  Symbol intern(const std::string& name);
  void look_up(Symbol symbol);
  void assign(Symbol symbol);
  // What was assigned since mark() counts as not set again: the end of a body.
  [[nodiscard]] std::size_t mark() const { return assigned_.size(); }
  void forget(std::size_t mark);

  [[nodiscard]] std::vector<std::string> looked_up() const;  // in order of the alphabet
  [[nodiscard]] std::vector<std::string> take_names() && { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  std::vector<bool> is_set_;
  std::vector<bool> is_read_;
  std::vector<Symbol> assigned_;
  std::unordered_map<std::string, Symbol> symbols_;
};

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, SymbolTable& symbols)
      : tokens_(tokens), symbols_(symbols) {}

  Result<ExprPtr> expression(bool with_conditional = true);
  // Expressions with commas between them make a tuple.
  Result<ExprPtr> tuple(bool with_conditional = true, bool may_be_empty = false);
  // name(arguments), any number of them with | between; the first has no input if `input` is null.
  Result<ExprPtr> filters(ExprPtr input);

  // Unknown filters and tests are errors unless they stand in an `if`, as in jinja2; there they are
  // errors when they are reached.
  [[nodiscard]] std::size_t mark_unknown() const { return unknown_.size(); }
  void forgive_unknown(std::size_t mark) { unknown_.resize(mark); }
  Status report_unknown() const { return unknown_.empty() ? Status() : Status(unknown_.front()); }

 private:
  struct Infix;

  Result<ExprPtr> conditional();
  Result<ExprPtr> binary(int level);
  Result<ExprPtr> prefixed(ExprKind kind, int level);
  Result<ExprPtr> unary(bool with_filters);
  Result<ExprPtr> primary();
  Result<ExprPtr> name();
  Result<ExprPtr> number();
  Result<ExprPtr> list_or_dict();
  Result<ExprPtr> postfix(ExprPtr operand, bool with_filters);
  Result<ExprPtr> attribute(ExprPtr operand);
  Result<ExprPtr> subscript(ExprPtr operand);
  Result<ExprPtr> call(ExprPtr callee);
  Result<ExprPtr> test(ExprPtr operand);
  Result<ArgumentExprs> arguments();
  Status argument(ArgumentExprs& arguments);

  [[nodiscard]] const Infix* next_infix(int level) const;
  [[nodiscard]] Expr node(ExprKind kind) const;
  // Finds a filter or test by the name of the node, and notes it when there is none.
  void look_up(Expr& node, const Builtin* (*find)(std::string_view), std::string_view kind);
  // Sets the height; an error if it is too high.
  Result<ExprPtr> finish(Expr node) const;

  TokenStream& tokens_;
  SymbolTable& symbols_;
  std::vector<Error> unknown_;
};

}  // namespace quire::text::jinja
