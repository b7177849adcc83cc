// Expressions of the template language, by precedence climbing over jinja2's levels.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/lexer.h"

namespace quire::text::jinja {

// Notes which names are looked up before they are certainly set.
class NameTracker {
 public:
  void look_up(const std::string& name);
  void assign(const std::string& name);
  // Counts names that were assigned since mark() as not set again: the end of a body.
  [[nodiscard]] std::size_t mark() const { return assigned_.size(); }
  void forget(std::size_t mark);
  // Returns how often `caller`, the body of a call block, was looked up so far.
  [[nodiscard]] int num_caller_lookups() const { return num_caller_lookups_; }
  [[nodiscard]] std::vector<std::string> looked_up() const { return {read_.begin(), read_.end()}; }

 private:
  std::set<std::string> set_;
  std::set<std::string> read_;
  std::vector<std::string> assigned_;
  int num_caller_lookups_ = 0;
};

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, NameTracker& names) : tokens_(tokens), names_(names) {}

  Result<ExprPtr> expression(bool with_conditional = true);
  // Parses expressions with commas between them, which make a tuple.
  Result<ExprPtr> tuple(bool with_conditional = true, bool may_be_empty = false);
  // Parses name(arguments), any number of them with | between. The first has no input if `input` is
  // null.
  Result<ExprPtr> filters(ExprPtr input);

  // Returns a mark for unknown filters and tests. They are errors unless they stand in an `if`, as
  // in jinja2; there they are errors when they are reached.
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
  Result<ExprPtr> literal();
  Result<ExprPtr> list_or_dict();
  Result<ExprPtr> postfix(ExprPtr operand, bool with_filters);
  Result<ExprPtr> attribute(ExprPtr operand);
  Result<ExprPtr> subscript(ExprPtr operand);
  Result<ExprPtr> call(ExprPtr callee);
  Result<ExprPtr> test(ExprPtr operand);
  Status arguments(Expr& out);

  [[nodiscard]] const Infix* next_infix(int level) const;
  [[nodiscard]] Expr node(ExprKind kind, ExprPtr operand = nullptr) const;
  // Takes the name of a filter or test and finds it; notes it when there is none.
  Status find_builtin_of(Expr& node, std::string_view kind);
  // Sets the height; an error if it is too high.
  Result<ExprPtr> finish(Expr node) const;

  TokenStream& tokens_;
  NameTracker& names_;
  std::vector<Error> unknown_;
};

}  // namespace quire::text::jinja
