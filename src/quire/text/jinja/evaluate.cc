// Expressions.
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/access.h"
#include "quire/text/jinja/arithmetic.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/interpreter.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

// Of * and ** each; arguments are the one list that the meter does not see.
constexpr std::size_t kMaxArguments = 1000;

Result<bool> compare_values(Meter& meter, Comparison comparison, const Value& left,
                            const Value& right) {
  constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
  switch (comparison) {
    case Comparison::kEqual:
    case Comparison::kNotEqual:
      return equal(&meter, left, right) == (comparison == Comparison::kEqual);
    case Comparison::kIn:
      return contains(meter, right, left);
    case Comparison::kNotIn: {
      QUIRE_TRY(const bool found, contains(meter, right, left));
      return !found;
    }
    default:
      return compare_order(meter, kSigns[static_cast<std::size_t>(comparison)], left, right);
  }
}

}  // namespace

Result<Value> Interpreter::evaluate(const Expr& expr, const ScopePtr& scope) {
  if (!meter().step() || !meter().enter()) {
    error_line_ = error_line_ == 0 ? expr.line : error_line_;
    return meter().error();
  }
  auto value = evaluate_node(expr, scope);
  meter().leave();
  if (value.ok() && meter().failed()) {
    value = meter().error();
  }
  if (!value.ok() && error_line_ == 0) {
    error_line_ = expr.line;
  }
  return value;
}

Result<Value> Interpreter::evaluate_node(const Expr& expr, const ScopePtr& scope) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return evaluate_name(expr, scope);
    case ExprKind::kAttribute:
    case ExprKind::kItem:
    case ExprKind::kSlice:
      return evaluate_access(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope, nullptr);
    case ExprKind::kFilter:
      return evaluate_filter(expr, scope);
    case ExprKind::kTest:
      return evaluate_test(expr, scope);
    case ExprKind::kNegate:
    case ExprKind::kPlus:
    case ExprKind::kBinary:
      return evaluate_operator(expr, scope);
    case ExprKind::kCompare:
      return evaluate_compare(expr, scope);
    case ExprKind::kNot:
    case ExprKind::kAnd:
    case ExprKind::kOr:
    case ExprKind::kConditional:
      return evaluate_logical(expr, scope);
    case ExprKind::kConcat:
      return evaluate_concat(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
      break;
  }
  return evaluate_literal(expr, scope);
}

Result<Value> Interpreter::evaluate_name(const Expr& expr, const ScopePtr& scope) {
  if (const auto* found = scope->find(expr.symbol)) {
    return *found;
  }
  return Value::undefined(meter(), base::str_cat("'", expr.name, "' is undefined"));
}

Result<Value> Interpreter::evaluate_operator(const Expr& expr, const ScopePtr& scope) {
  QUIRE_TRY(const auto left, evaluate(*expr.operands[0], scope));
  if (expr.kind != ExprKind::kBinary) {
    return expr.kind == ExprKind::kNegate ? negate(left) : plus(left);
  }
  QUIRE_TRY(const auto right, evaluate(*expr.operands[1], scope));
  return apply(meter(), expr.op, left, right);
}

Result<Value> Interpreter::evaluate_logical(const Expr& expr, const ScopePtr& scope) {
  if (expr.kind == ExprKind::kConditional) {
    QUIRE_TRY(const auto condition, evaluate(*expr.operands[1], scope));
    const Expr* chosen = expr.operands[truth(condition) ? 0 : 2].get();
    return chosen != nullptr ? evaluate(*chosen, scope)
                             : Value::undefined(meter(),
                                                "the inline if-expression evaluated to false and "
                                                "no else section was defined.");
  }
  QUIRE_TRY(auto left, evaluate(*expr.operands[0], scope));
  if (expr.kind == ExprKind::kNot) {
    return Value::boolean(!truth(left));
  }
  const bool decided = truth(left) == (expr.kind == ExprKind::kOr);
  return decided ? std::move(left) : evaluate(*expr.operands[1], scope);
}

Result<Value> Interpreter::evaluate_access(const Expr& expr, const ScopePtr& scope) {
  QUIRE_TRY(const auto value, evaluate(*expr.operands[0], scope));
  if (expr.kind == ExprKind::kAttribute) {
    return get_attribute(meter(), value, expr.name);
  }
  if (expr.kind == ExprKind::kItem) {
    QUIRE_TRY(const auto key, evaluate(*expr.operands[1], scope));
    return get_item(meter(), value, key);
  }
  std::array<Value, 3> bounds;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (expr.operands[i + 1] != nullptr) {
      QUIRE_TRY(bounds[i], evaluate(*expr.operands[i + 1], scope));
    }
  }
  return get_slice(meter(), value, bounds);
}

Result<Value> Interpreter::evaluate_compare(const Expr& expr, const ScopePtr& scope) {
  QUIRE_TRY(auto left, evaluate(*expr.operands[0], scope));
  for (std::size_t i = 0; i < expr.comparisons.size(); ++i) {
    QUIRE_TRY(auto right, evaluate(*expr.operands[i + 1], scope));
    QUIRE_TRY(const bool holds, compare_values(meter(), expr.comparisons[i], left, right));
    if (!holds) {
      return Value::boolean(false);
    }
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Interpreter::evaluate_concat(const Expr& expr, const ScopePtr& scope) {
  TextBuilder out(&meter());
  for (const auto& operand : expr.operands) {
    QUIRE_TRY(const auto value, evaluate(*operand, scope));
    QUIRE_TRY_STATUS(append_str(meter(), value, out));
  }
  return Value::string(std::move(out).build());
}

Result<Value> Interpreter::evaluate_literal(const Expr& expr, const ScopePtr& scope) {
  if (expr.kind != ExprKind::kDict) {
    SequenceBuilder items(
        &meter(), expr.kind == ExprKind::kList ? SequenceKind::kList : SequenceKind::kTuple);
    for (const auto& operand : expr.operands) {
      QUIRE_TRY(auto item, evaluate(*operand, scope));
      items.push(std::move(item));
    }
    return std::move(items).build();
  }
  DictBuilder entries(&meter());
  for (std::size_t i = 0; i < expr.operands.size(); i += 2) {
    QUIRE_TRY(const auto key, evaluate(*expr.operands[i], scope));
    QUIRE_TRY(auto value, evaluate(*expr.operands[i + 1], scope));
    if (!is_hashable(key)) {
      return invalid("unhashable type: ", type_name(key));
    }
    entries.set(key, std::move(value));
  }
  return std::move(entries).build();
}

Result<Arguments> Interpreter::evaluate_arguments(const ArgumentExprs& exprs,
                                                  const ScopePtr& scope) {
  const Error too_many = invalid("* and ** can spread at most ", kMaxArguments, " arguments");
  Arguments out;
  for (const auto& expr : exprs.positional) {
    QUIRE_TRY(auto value, evaluate(*expr, scope));
    out.positional.push_back(std::move(value));
  }
  if (exprs.spread != nullptr) {
    QUIRE_TRY(const auto value, evaluate(*exprs.spread, scope));
    QUIRE_TRY(const auto items, iterate(meter(), value));
    if (items->items.size() > kMaxArguments) {
      return too_many;
    }
    out.positional.insert(out.positional.end(), items->items.begin(), items->items.end());
  }
  for (const auto& [name, expr] : exprs.named) {
    QUIRE_TRY(auto value, evaluate(*expr, scope));
    out.named.emplace_back(name, std::move(value));
  }
  if (exprs.spread_named != nullptr) {
    QUIRE_TRY(const auto value, evaluate(*exprs.spread_named, scope));
    if (value.dict() == nullptr) {
      return invalid("the argument after ** must be a dict, not ", type_name(value));
    }
    if (value.dict()->items.size() > kMaxArguments) {
      return too_many;
    }
    for (const auto& [key, item] : value.dict()->items) {
      if (key.text() == nullptr) {
        return invalid("keywords must be strings");
      }
      out.named.emplace_back(std::string(key.text()->view()), item);
    }
  }
  return out;
}

Result<Value> Interpreter::evaluate_call(const Expr& expr, const ScopePtr& scope,
                                         const Value* caller) {
  const Expr& called = *expr.operands[0];
  QUIRE_TRY(const auto callee, evaluate(called, scope));
  QUIRE_TRY(auto arguments, evaluate_arguments(expr.arguments, scope));
  if (caller != nullptr) {
    arguments.named.emplace_back("caller", *caller);
  }
  if (const auto* callable = callee.get<std::shared_ptr<const Callable>>()) {
    return (*callable)->call(runtime_, arguments);
  }
  if (callee.is_undefined() && called.kind == ExprKind::kName) {
    return unsupported("function '", called.name, "' is not defined");
  }
  if (const auto* undefined = callee.get<Undefined>()) {
    return invalid(undefined->message());
  }
  return invalid("'", type_name(callee), "' object is not callable");
}

Result<Value> Interpreter::evaluate_filter(const Expr& expr, const ScopePtr& scope) {
  Value input;
  if (expr.operands[0] == nullptr) {
    input = *block_output_;
  } else {
    QUIRE_TRY(input, evaluate(*expr.operands[0], scope));
  }
  if (expr.filter == nullptr) {
    return unsupported("filter '", expr.name, "' is not supported");
  }
  QUIRE_TRY(const auto arguments, evaluate_arguments(expr.arguments, scope));
  return expr.filter(runtime_, input, arguments);
}

Result<Value> Interpreter::evaluate_test(const Expr& expr, const ScopePtr& scope) {
  QUIRE_TRY(const auto value, evaluate(*expr.operands[0], scope));
  if (expr.test == nullptr) {
    return unsupported("test '", expr.name, "' is not supported");
  }
  QUIRE_TRY(const auto arguments, evaluate_arguments(expr.arguments, scope));
  QUIRE_TRY(const bool holds, expr.test(runtime_, value, arguments));
  return Value::boolean(holds);
}

}  // namespace quire::text::jinja
