#include "quire/text/jinja/interpreter.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/access.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/loop.h"
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
  auto flow = run_all(parsed_.body, variables, out);
  if (!flow.ok()) {
    Error error = flow.error();
    error.message = base::str_cat("template line ", error_line_, ": ", error.message);
    return error;
  }
  return std::move(out).build();
}

Result<Interpreter::Flow> Interpreter::run_all(const std::vector<Stmt>& body, const ScopePtr& scope,
                                               TextBuilder& out) {
  for (const auto& stmt : body) {
    if (!meter().step() || !meter().enter()) {
      error_line_ = error_line_ == 0 ? stmt.line : error_line_;
      return meter().error();
    }
    auto flow = run_one(stmt, scope, out);
    meter().leave();
    if (flow.ok() && meter().failed()) {
      flow = meter().error();
    }
    if (!flow.ok() && error_line_ == 0) {
      error_line_ = stmt.line;
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
    case StmtKind::kWith:
      return run_with(stmt, scope, out);
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
      return assign(stmt.target, value, *scope);
    }
    case StmtKind::kSetBlock: {
      QUIRE_TRY(const auto value, capture(stmt.body, stmt.expr.get(), scope));
      return assign(stmt.target, value, *scope);
    }
    case StmtKind::kMacro:
      scope->set(stmt.target.symbol, make_macro(*stmt.macro, scope));
      return {};
    case StmtKind::kCallBlock:
      return run_call_block(stmt, scope, out);
    case StmtKind::kFilterBlock:
    case StmtKind::kScope: {
      QUIRE_TRY(const auto value, capture(stmt.body, stmt.expr.get(), scope));
      if (value.text() == nullptr) {
        return invalid("a filter block must make a string, not ", type_name(value));
      }
      out.append(*value.text());
      return {};
    }
    default:
      return {};
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

LoopContext::Filter Interpreter::loop_filter(const Stmt& stmt, const ScopePtr& scope) {
  if (stmt.condition == nullptr) {
    return {};
  }
  return [this, &stmt, scope](const Value& item) -> Result<bool> {
    const ScopePtr inner = inner_scope(scope);
    QUIRE_TRY_STATUS(assign(stmt.target, item, *inner));
    QUIRE_TRY(const auto condition, evaluate(*stmt.condition, inner));
    return truth(condition);
  };
}

Result<Interpreter::Flow> Interpreter::run_for(const Stmt& stmt, const ScopePtr& scope,
                                               TextBuilder& out) {
  QUIRE_TRY(const auto iterable, evaluate(*stmt.expr, scope));
  QUIRE_TRY(auto items, iterate(meter(), iterable));
  const auto loop = std::make_shared<LoopContext>(std::move(items), loop_filter(stmt, scope));
  // As in jinja2, an iteration that `break` or `continue` ends does not keep `else` from running.
  bool finished_one = false;
  for (;;) {
    QUIRE_TRY(const auto item, loop->next());
    if (!item) {
      break;
    }
    meter().step(kScopeSteps);
    const ScopePtr inner = inner_scope(scope);
    inner->set(kLoopSymbol, Value(loop, kFromTemplate));
    QUIRE_TRY_STATUS(assign(stmt.target, *item, *inner));
    QUIRE_TRY(const auto flow, run_all(stmt.body, inner, out));
    if (flow == Flow::kBreak) {
      break;
    }
    finished_one = finished_one || flow == Flow::kNormal;
  }
  return finished_one ? Result<Flow>(Flow::kNormal) : run_all(stmt.orelse, inner_scope(scope), out);
}

Result<Interpreter::Flow> Interpreter::run_with(const Stmt& stmt, const ScopePtr& scope,
                                                TextBuilder& out) {
  const ScopePtr inner = inner_scope(scope);
  for (const auto& [target, expr] : stmt.assignments) {
    QUIRE_TRY(const auto value, evaluate(*expr, scope));
    QUIRE_TRY_STATUS(assign(target, value, *inner));
  }
  return run_all(stmt.body, inner, out);
}

Status Interpreter::run_call_block(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
  const Value caller = make_macro(*stmt.macro, scope);
  QUIRE_TRY(const auto value, evaluate_call(*stmt.expr, scope, &caller));
  return append_str(meter(), value, out);
}

Result<Value> Interpreter::capture(const std::vector<Stmt>& body, const Expr* filter,
                                   const ScopePtr& scope) {
  const ScopePtr inner = inner_scope(scope);
  TextBuilder builder(&meter());
  QUIRE_TRY([[maybe_unused]] const auto flow, run_all(body, inner, builder));
  const Value output = Value::string(std::move(builder).build());
  if (filter == nullptr) {
    return output;
  }
  const Value* outer = std::exchange(block_output_, &output);
  auto filtered = evaluate(*filter, inner);
  block_output_ = outer;
  return filtered;
}

Status Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  if (target.is_tuple) {
    return unpack(target, value, scope);
  }
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

Status Interpreter::unpack(const Target& target, const Value& value, Scope& scope) {
  QUIRE_TRY(const auto items, iterate(meter(), value));
  if (items->items.size() != target.items.size()) {
    return invalid("cannot unpack ", items->items.size(), " values into ", target.items.size(),
                   " names");
  }
  for (std::size_t i = 0; i < target.items.size(); ++i) {
    QUIRE_TRY_STATUS(assign(target.items[i], items->items[i], scope));
  }
  return {};
}

Value Interpreter::make_macro(const Macro& macro, const ScopePtr& scope) {
  runtime_.keep(scope);
  return Value::callable(
      meter(), {.description = base::str_cat("macro '", macro.name, "'"),
                .printed = macro.name.empty() ? "<Macro anonymous>"
                                              : base::str_cat("<Macro '", macro.name, "'>"),
                .call = [this, &macro, scope](Runtime&, const Arguments& arguments) {
                  return call_macro(macro, scope, arguments);
                }});
}

Result<Value> Interpreter::call_macro(const Macro& macro, const ScopePtr& outer,
                                      const Arguments& arguments) {
  meter().step(kScopeSteps);
  const ScopePtr scope = inner_scope(outer);
  QUIRE_TRY_STATUS(bind_parameters(macro, arguments, scope));
  TextBuilder out(&meter());
  QUIRE_TRY([[maybe_unused]] const auto flow, run_all(macro.body, scope, out));
  return Value::string(std::move(out).build());
}

// jinja2's Macro.__call__: by position, then by name, then defaults; what is left becomes caller,
// kwargs and varargs, where the body uses them.
Status Interpreter::bind_parameters(const Macro& macro, Arguments arguments,
                                    const ScopePtr& scope) {
  auto& named = arguments.named;
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    meter().step(named.size() + 1);
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (found == named.end()) {
      return std::nullopt;
    }
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  };
  bool has_caller_parameter = false;
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    has_caller_parameter = has_caller_parameter || parameter.symbol == kCallerSymbol;
    std::optional<Value> value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else {
      value = take(parameter.name);
    }
    if (!value && parameter.fallback != nullptr) {
      QUIRE_TRY(value, evaluate(*parameter.fallback, scope));
    }
    scope->set(parameter.symbol,
               value ? *std::move(value)
                     : Value::undefined(meter(), base::str_cat("parameter '", parameter.name,
                                                               "' was not provided")));
  }
  if (macro.uses_caller && !has_caller_parameter) {
    auto caller = take("caller");
    scope->set(kCallerSymbol, caller && !caller->is_none()
                                  ? *std::move(caller)
                                  : Value::undefined(meter(), "No caller defined"));
  }
  if (macro.uses_kwargs) {
    DictBuilder rest(&meter());
    for (auto& [name, value] : named) {
      rest.push(Value::string(make_text(&meter(), name, kFromTemplate)), std::move(value));
    }
    scope->set(kKwargsSymbol, std::move(rest).build());
  } else if (!named.empty()) {
    return invalid("macro '", macro.name, "' takes no keyword argument '", named.front().first,
                   "'");
  }
  if (macro.uses_varargs) {
    SequenceBuilder rest(&meter(), SequenceKind::kTuple);
    for (std::size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i) {
      rest.push(std::move(arguments.positional[i]));
    }
    scope->set(kVarargsSymbol, std::move(rest).build());
  } else if (arguments.positional.size() > macro.parameters.size()) {
    return invalid("macro '", macro.name, "' takes not more than ", macro.parameters.size(),
                   " arguments");
  }
  return {};
}

}  // namespace quire::text::jinja
