#include "quire/text/jinja/interpreter.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

// What an iteration or a macro call costs besides its nodes.
constexpr std::size_t kScopeSteps = 8;

}  // namespace

Result<TextPtr> Interpreter::run(const ScopePtr& variables) {
  TextBuilder out(&meter());
  const auto flow = run_all(parsed_.body, variables, out);
  if (!flow.ok()) {
    Error error = flow.error();
    error.message = base::str_cat("template line ", error_line_, ": ", error.message);
    return error;
  }
  return std::move(out).build();
}

// ---- statements

Result<Interpreter::Flow> Interpreter::run_all(const Body& body, const ScopePtr& scope,
                                               TextBuilder& out) {
  for (const auto& stmt : body) {
    if (!meter().step() || !meter().enter()) {
      note_line(stmt.line);
      return meter().error();
    }
    auto flow = run_one(stmt, scope, out);
    meter().leave();
    if (flow.ok() && meter().failed()) {
      flow = meter().error();
    }
    if (!flow.ok()) {
      note_line(stmt.line);
    }
    if (!flow.ok() || *flow != Flow::kNormal) {
      return flow;
    }
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::run_one(const Stmt& stmt, const ScopePtr& scope,
                                               TextBuilder& out) {
  switch (stmt.kind) {
    case StmtKind::kIf:
      return run_if(stmt, scope, out);
    case StmtKind::kFor:
      return run_for(stmt, scope, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    default:
      QUIRE_TRY_STATUS(run_simple(stmt, scope, out));
      return Flow::kNormal;
  }
}

// Statements that cannot leave a loop.
Status Interpreter::run_simple(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
  switch (stmt.kind) {
    case StmtKind::kText:
      out.append(*stmt.text);
      return {};
    case StmtKind::kPrint: {
      QUIRE_TRY(const auto value, evaluate(*stmt.expr, scope));
      return append_str(meter(), value, out);
    }
    case StmtKind::kSet: {
      QUIRE_TRY(const auto value, evaluate(*stmt.expr, scope));
      return assign(stmt.targets, value, *scope);
    }
    case StmtKind::kSetBlock: {
      QUIRE_TRY(const auto value, capture(stmt.body, inner_scope(scope)));
      return assign(stmt.targets, value, *scope);
    }
    case StmtKind::kMacro:
      return assign(stmt.targets, make_macro(*stmt.macro, scope), *scope);
    case StmtKind::kCallBlock: {
      const Value caller = make_macro(*stmt.macro, scope);
      QUIRE_TRY(const auto value, evaluate_call(*stmt.expr, scope, &caller));
      return append_str(meter(), value, out);
    }
    default:
      return run_filter_block(stmt, scope, out);
  }
}

Result<Interpreter::Flow> Interpreter::run_if(const Stmt& stmt, const ScopePtr& scope,
                                              TextBuilder& out) {
  for (const auto& branch : stmt.branches) {
    QUIRE_TRY(const auto condition, evaluate(*branch.condition, scope));
    if (truth(condition)) {
      return run_all(branch.body, scope, out);
    }
  }
  return run_all(stmt.orelse, scope, out);
}

Loop::Filter Interpreter::loop_filter(const Stmt& stmt, const ScopePtr& scope) {
  if (stmt.condition == nullptr) {
    return {};
  }
  return [this, &stmt, scope](const Value& item) -> Result<bool> {
    const ScopePtr inner = inner_scope(scope);
    QUIRE_TRY_STATUS(assign(stmt.targets, item, *inner));
    QUIRE_TRY(const auto condition, evaluate(*stmt.condition, inner));
    return truth(condition);
  };
}

Result<Interpreter::Flow> Interpreter::run_for(const Stmt& stmt, const ScopePtr& scope,
                                               TextBuilder& out) {
  QUIRE_TRY(const auto iterable, evaluate(*stmt.expr, scope));
  QUIRE_TRY(auto items, iterate(meter(), iterable));
  const auto loop = std::make_shared<Loop>(std::move(items), loop_filter(stmt, scope));
  // As in jinja2, an iteration that `break` or `continue` ends does not keep `else` from running.
  bool finished_one = false;
  for (;;) {
    QUIRE_TRY(const auto* item, loop->next());
    if (item == nullptr) {
      break;
    }
    meter().step(kScopeSteps);
    const ScopePtr inner = inner_scope(scope);
    inner->set(kLoopSymbol, Value(loop, kFromTemplate));
    QUIRE_TRY_STATUS(assign(stmt.targets, *item, *inner));
    QUIRE_TRY(const auto flow, run_all(stmt.body, inner, out));
    if (flow == Flow::kBreak) {
      break;
    }
    finished_one = finished_one || flow == Flow::kNormal;
  }
  return finished_one ? Result<Flow>(Flow::kNormal) : run_all(stmt.orelse, inner_scope(scope), out);
}

Status Interpreter::run_filter_block(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
  const ScopePtr inner = inner_scope(scope);
  QUIRE_TRY(auto value, capture(stmt.body, inner));
  if (stmt.expr != nullptr) {
    const Value input = std::move(value);
    const Value* outer = std::exchange(block_output_, &input);
    auto filtered = evaluate(*stmt.expr, inner);
    block_output_ = outer;
    QUIRE_TRY(value, std::move(filtered));
  }
  if (value.text() == nullptr) {
    return invalid("a filter block must make a string, not ", type_name(value));
  }
  out.append(*value.text());
  return {};
}

Result<Value> Interpreter::capture(const Body& body, const ScopePtr& scope) {
  TextBuilder out(&meter());
  QUIRE_TRY([[maybe_unused]] const auto flow, run_all(body, scope, out));
  return Value::string(std::move(out).build());
}

Status Interpreter::assign(const Targets& targets, const Value& value, Scope& scope) {
  if (targets.size() == 1) {
    return assign_one(targets.front(), value, scope);
  }
  QUIRE_TRY(const auto items, iterate(meter(), value));
  if (items->items.size() != targets.size()) {
    return invalid("cannot unpack ", items->items.size(), " values into ", targets.size(),
                   " names");
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    QUIRE_TRY_STATUS(assign_one(targets[i], items->items[i], scope));
  }
  return {};
}

Status Interpreter::assign_one(const Target& target, const Value& value, Scope& scope) {
  if (target.attribute.empty()) {
    scope.set(target.symbol, value);
    return {};
  }
  const Value* found = scope.find(target.symbol);
  const auto* space = found == nullptr ? nullptr : found->get<std::shared_ptr<Namespace>>();
  if (space == nullptr) {
    return invalid("cannot assign attribute on non-namespace object");
  }
  if (target.attribute.starts_with('_')) {
    return invalid("a namespace cannot have the attribute ", base::quoted(target.attribute));
  }
  (*space)->set(target.attribute, value);
  return {};
}

// ---- macros

Value Interpreter::make_macro(const Macro& macro, const ScopePtr& scope) {
  runtime_.keep(scope);
  return Value::callable(
      meter(),
      {.description = base::str_cat("macro '", macro.name, "'"),
       .call = [this, &macro, scope](Runtime&, const Arguments& arguments) -> Result<Value> {
         meter().step(kScopeSteps);
         const ScopePtr inner = inner_scope(scope);
         QUIRE_TRY_STATUS(bind_parameters(macro, arguments, inner));
         return capture(macro.body, inner);
       }});
}

// By position, then by name, then defaults.
Status Interpreter::bind_parameters(const Macro& macro, const Arguments& arguments,
                                    const ScopePtr& scope) {
  const auto& parameters = macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return invalid("macro '", macro.name, "' takes not more than ", parameters.size(),
                   " arguments");
  }
  for (const auto& [name, value] : arguments.named) {
    const auto known = std::ranges::find(parameters, name, &Parameter::name);
    if (name == "caller") {
      scope->set(kCallerSymbol, value);
    } else if (known == parameters.end() ||
               known <
                   parameters.begin() + static_cast<std::ptrdiff_t>(arguments.positional.size())) {
      return invalid("macro '", macro.name, "' takes no keyword argument '", name, "'");
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const auto named = std::ranges::find_if(
        arguments.named, [&](auto& each) { return each.first == parameter.name; });
    Value value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else if (named != arguments.named.end()) {
      value = named->second;
    } else if (parameter.fallback != nullptr) {
      QUIRE_TRY(value, evaluate(*parameter.fallback, scope));
    } else {
      value = Value::undefined(meter(),
                               base::str_cat("parameter '", parameter.name, "' was not provided"));
    }
    scope->set(parameter.symbol, std::move(value));
  }
  return {};
}

// ---- expressions

Result<Value> Interpreter::evaluate(const Expr& expr, const ScopePtr& scope) {
  if (!meter().step() || !meter().enter()) {
    note_line(expr.line);
    return meter().error();
  }
  auto value = evaluate_node(expr, scope);
  meter().leave();
  if (value.ok() && meter().failed()) {
    value = meter().error();
  }
  if (!value.ok()) {
    note_line(expr.line);
  }
  return value;
}

Result<Value> Interpreter::evaluate_node(const Expr& expr, const ScopePtr& scope) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName: {
      const auto* found = scope->find(expr.symbol);
      return found != nullptr
                 ? *found
                 : Value::undefined(meter(), base::str_cat("'", expr.name, "' is undefined"));
    }
    case ExprKind::kConditional:
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return evaluate_lazy(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope, nullptr);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return evaluate_builtin(expr, scope);
    default:
      break;
  }
  std::vector<Value> operands;
  operands.reserve(expr.operands.size());
  for (const auto& operand : expr.operands) {
    QUIRE_TRY(auto value, operand == nullptr ? Value() : evaluate(*operand, scope));
    operands.push_back(std::move(value));
  }
  return combine(expr, operands);
}

// The conditional expression, `and` and `or`, which do not evaluate all of their operands.
Result<Value> Interpreter::evaluate_lazy(const Expr& expr, const ScopePtr& scope) {
  if (expr.kind == ExprKind::kConditional) {
    QUIRE_TRY(const auto condition, evaluate(*expr.operands[1], scope));
    const Expr* chosen = expr.operands[truth(condition) ? 0 : 2].get();
    return chosen != nullptr
               ? evaluate(*chosen, scope)
               : Value::undefined(meter(), "the inline if-expression was false and has no else");
  }
  QUIRE_TRY(auto left, evaluate(*expr.operands[0], scope));
  const bool decided = truth(left) == (expr.kind == ExprKind::kOr);
  return decided ? std::move(left) : evaluate(*expr.operands[1], scope);
}

Result<Value> Interpreter::combine(const Expr& expr, std::vector<Value>& operands) {
  switch (expr.kind) {
    case ExprKind::kAttribute:
      return get_attribute(meter(), operands[0], expr.name);
    case ExprKind::kItem:
      return get_item(meter(), operands[0], operands[1]);
    case ExprKind::kSlice:
      return get_slice(meter(), operands[0], {operands[1], operands[2], operands[3]});
    case ExprKind::kNot:
      return Value::boolean(!truth(operands[0]));
    case ExprKind::kNegate:
      return negate(operands[0]);
    case ExprKind::kBinary:
      return apply(meter(), expr.op, operands[0], operands[1]);
    case ExprKind::kConcat: {
      TextBuilder out(&meter());
      for (const Value& operand : operands) {
        QUIRE_TRY_STATUS(append_str(meter(), operand, out));
      }
      return Value::string(std::move(out).build());
    }
    case ExprKind::kDict: {
      DictBuilder out(&meter());
      for (std::size_t i = 0; i < operands.size(); i += 2) {
        QUIRE_TRY_STATUS(check_hashable(operands[i]));
        out.set(operands[i], std::move(operands[i + 1]));
      }
      return std::move(out).build();
    }
    default: {
      SequenceBuilder out(
          &meter(), expr.kind == ExprKind::kList ? SequenceKind::kList : SequenceKind::kTuple);
      for (Value& operand : operands) {
        out.push(std::move(operand));
      }
      return std::move(out).build();
    }
  }
}

Result<Arguments> Interpreter::evaluate_arguments(const ArgumentExprs& exprs,
                                                  const ScopePtr& scope) {
  Arguments out;
  for (const auto& expr : exprs.positional) {
    QUIRE_TRY(auto value, evaluate(*expr, scope));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, expr] : exprs.named) {
    QUIRE_TRY(auto value, evaluate(*expr, scope));
    out.named.emplace_back(name, std::move(value));
  }
  return out;
}

Result<Value> Interpreter::evaluate_call(const Expr& expr, const ScopePtr& scope,
                                         const Value* caller) {
  const Expr& called = *expr.operands[0];
  Value owner;
  Value callee;
  if (called.kind == ExprKind::kAttribute) {
    QUIRE_TRY(owner, evaluate(*called.operands[0], scope));
    QUIRE_TRY(callee, get_attribute(meter(), owner, called.name));
  } else {
    QUIRE_TRY(callee, evaluate(called, scope));
  }
  QUIRE_TRY(auto arguments, evaluate_arguments(expr.arguments, scope));
  if (caller != nullptr) {
    arguments.named.emplace_back("caller", *caller);
  }
  if (const auto* callable = callee.get<std::shared_ptr<const Callable>>()) {
    return (*callable)->call(runtime_, arguments);
  }
  if (callee.is_undefined() && called.kind == ExprKind::kName) {
    return unsupported("function '", called.name, "'");
  }
  if (callee.is_undefined() && called.kind == ExprKind::kAttribute) {
    return unsupported("method '", called.name, "' of ", type_name(owner));
  }
  QUIRE_TRY_STATUS(check_defined(callee));
  return invalid("'", type_name(callee), "' object is not callable");
}

Result<Value> Interpreter::evaluate_builtin(const Expr& expr, const ScopePtr& scope) {
  Value input;
  if (expr.operands[0] == nullptr) {
    input = *block_output_;
  } else {
    QUIRE_TRY(input, evaluate(*expr.operands[0], scope));
  }
  if (expr.builtin == nullptr) {
    return unsupported(expr.kind == ExprKind::kFilter ? "filter '" : "test '", expr.name, "'");
  }
  QUIRE_TRY(const auto arguments, evaluate_arguments(expr.arguments, scope));
  return expr.builtin->call(runtime_, input, arguments);
}

}  // namespace quire::text::jinja
