#include "quire/text/jinja/names_read.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/functions.h"
#include "quire/text/jinja/runtime.h"

namespace quire::text::jinja {
namespace {

using SetNames = std::set<Symbol>;

// Walks a template in the order of its text. `set` holds what is certainly set where the walk is.
class ReadingWalk {
 public:
  [[nodiscard]] const SetNames& read() const { return read_; }

  // What the statements set holds for what follows them.
  void statements(const std::vector<Stmt>& body, SetNames& set) {
    for (const Stmt& statement : body) {
      visit(statement, set);
    }
  }

 private:
  // What the statements set ends with them.
  void scope(const std::vector<Stmt>& body, SetNames set) { statements(body, set); }

  void visit(const Stmt& statement, SetNames& set) {
    switch (statement.kind) {
      case StmtKind::kText:
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
      case StmtKind::kPrint:
        return expression(statement.expr, set);
      case StmtKind::kSet:
        expression(statement.expr, set);
        return assign(statement.target, set);
      case StmtKind::kSetBlock:
        scope(statement.body, set);
        expression(statement.expr, set);
        return assign(statement.target, set);
      case StmtKind::kIf:
        return visit_if(statement, set);
      case StmtKind::kFor:
        return visit_for(statement, set);
      case StmtKind::kMacro:
        visit_macro(*statement.macro, set);
        return assign(statement.target, set);
      case StmtKind::kCallBlock:
        expression(statement.expr, set);
        return visit_macro(*statement.macro, set);
      case StmtKind::kFilterBlock:
        expression(statement.expr, set);
        return scope(statement.body, set);
      case StmtKind::kWith:
        return visit_with(statement, set);
      case StmtKind::kScope:
        return scope(statement.body, set);
    }
  }

  void visit_if(const Stmt& statement, const SetNames& set) {
    for (const Branch& branch : statement.branches) {
      expression(branch.condition, set);
      scope(branch.body, set);
    }
    scope(statement.orelse, set);
  }

  void visit_for(const Stmt& statement, const SetNames& set) {
    expression(statement.expr, set);
    SetNames inside = set;
    assign(statement.target, inside);
    inside.insert(kLoopSymbol);
    expression(statement.condition, inside);
    scope(statement.body, inside);
    scope(statement.orelse, set);
  }

  void visit_macro(const Macro& macro, const SetNames& set) {
    SetNames inside = set;
    for (const Parameter& parameter : macro.parameters) {
      expression(parameter.fallback, inside);
      inside.insert(parameter.symbol);
    }
    inside.insert({kCallerSymbol, kVarargsSymbol, kKwargsSymbol});
    scope(macro.body, inside);
  }

  void visit_with(const Stmt& statement, const SetNames& set) {
    SetNames inside = set;
    for (const auto& [target, value] : statement.assignments) {
      expression(value, set);
      assign(target, inside);
    }
    scope(statement.body, inside);
  }

  void assign(const Target& target, SetNames& set) {
    for (const Target& item : target.items) {
      assign(item, set);
    }
    if (target.is_tuple) {
      return;
    }
    if (target.attribute.empty()) {
      set.insert(target.symbol);
    } else {
      look_up(target.symbol, set);
    }
  }

  void expression(const ExprPtr& expr, const SetNames& set) {
    if (expr == nullptr) {
      return;
    }
    if (expr->kind == ExprKind::kName) {
      look_up(expr->symbol, set);
    }
    for (const ExprPtr& operand : expr->operands) {
      expression(operand, set);
    }
    const ArgumentExprs& arguments = expr->arguments;
    for (const ExprPtr& argument : arguments.positional) {
      expression(argument, set);
    }
    for (const auto& [name, argument] : arguments.named) {
      expression(argument, set);
    }
    expression(arguments.spread, set);
    expression(arguments.spread_named, set);
  }

  void look_up(Symbol symbol, const SetNames& set) {
    if (!set.contains(symbol)) {
      read_.insert(symbol);
    }
  }

  SetNames read_;
};

}  // namespace

std::vector<std::string> names_read(const Template& parsed) {
  ReadingWalk walk;
  SetNames set;
  walk.statements(parsed.body, set);
  std::vector<std::string> names;
  for (const Symbol symbol : walk.read()) {
    const std::string& name = parsed.symbols[static_cast<std::size_t>(symbol)];
    const bool is_function = std::ranges::any_of(
        global_functions(), [&name](const auto& function) { return function.name == name; });
    if (!is_function) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace quire::text::jinja
