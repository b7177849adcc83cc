#include "quire/text/jinja/interpreter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/library.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {
namespace {

// Steps that an iteration or a macro call costs besides its nodes.
constexpr std::size_t kScopeSteps = 8;

// Makes the values of expressions.
class Evaluator {
 public:
  explicit Evaluator(Runtime& runtime) : runtime_(runtime), meter_(runtime.meter()) {}

  Result<Value> evaluate(const Expr& expr, const ScopePtr& scope) {
    if (!meter_.step() || !meter_.enter()) {
      note_line(expr.line);
      return meter_.error();
    }
    auto value = evaluate_node(expr, scope);
    meter_.leave();
    if (value.ok() && meter_.failed()) {
      value = meter_.error();
    }
    if (!value.ok()) {
      note_line(expr.line);
    }
    return value;
  }

  // Evaluates a call. `caller` is the body of a call block, or null.
  Result<Value> call(const Expr& expr, const ScopePtr& scope, const Value* caller) {
    const Expr& called = *expr.operands[0];
    const bool of_value = called.kind == ExprKind::kAttribute;
    QUIRE_TRY(const auto owner, of_value ? evaluate(*called.operands[0], scope) : Value());
    QUIRE_TRY(const auto callee,
              of_value ? get_attribute(meter_, owner, called.name) : evaluate(called, scope));
    QUIRE_TRY(auto given, arguments(expr, scope));
    if (caller != nullptr) {
      given.named.emplace_back("caller", *caller);
    }
    if (const auto* callable = callee.get<std::shared_ptr<const Callable>>()) {
      return (*callable)->call(runtime_, given);
    }
    if (callee.is_undefined() && of_value) {
      return unsupported("method '", called.name, "' of ", type_name(owner));
    }
    if (callee.is_undefined() && called.kind == ExprKind::kName) {
      return unsupported("function '", called.name, "'");
    }
    QUIRE_TRY_STATUS(check_defined(callee));
    return invalid("'", type_name(callee), "' object is not callable");
  }

  // Runs the filters of a filter block, on what the block wrote.
  Result<Value> filter(const Expr& expr, const ScopePtr& scope, const Value& input) {
    const Value* outer = std::exchange(block_output_, &input);
    auto filtered = evaluate(expr, scope);
    block_output_ = outer;
    return filtered;
  }

  // Notes the line of the innermost node that failed.
  void note_line(int line) { error_line_ = error_line_ == 0 ? line : error_line_; }
  [[nodiscard]] int error_line() const { return error_line_; }

 private:
  Result<Value> evaluate_node(const Expr& expr, const ScopePtr& scope) {
    switch (expr.kind) {
      case ExprKind::kConstant:
        return expr.constant;
      case ExprKind::kName:
        return look_up(expr.name, *scope);
      case ExprKind::kConditional:
      case ExprKind::kAnd:
      case ExprKind::kOr:
        return evaluate_lazy(expr, scope);
      case ExprKind::kCall:
        return call(expr, scope, nullptr);
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

  Value look_up(const std::string& name, const Scope& scope) {
    if (const auto* found = scope.find(name)) {
      return *found;
    }
    if (const auto* function = find_function(name)) {
      return bind_builtin(meter_, base::str_cat("function '", name, "'"), *function, Value());
    }
    return Value::undefined(meter_, base::str_cat("'", name, "' is undefined"));
  }

  // Evaluates the conditional expression, `and` and `or`, which do not evaluate all of their
  // operands.
  Result<Value> evaluate_lazy(const Expr& expr, const ScopePtr& scope) {
    if (expr.kind == ExprKind::kConditional) {
      QUIRE_TRY(const auto condition, evaluate(*expr.operands[1], scope));
      const Expr* chosen = expr.operands[truth(condition) ? 0 : 2].get();
      return chosen != nullptr
                 ? evaluate(*chosen, scope)
                 : Value::undefined(meter_, "the inline if-expression was false and has no else");
    }
    QUIRE_TRY(auto left, evaluate(*expr.operands[0], scope));
    const bool decided = truth(left) == (expr.kind == ExprKind::kOr);
    return decided ? std::move(left) : evaluate(*expr.operands[1], scope);
  }

  Result<Value> evaluate_builtin(const Expr& expr, const ScopePtr& scope) {
    QUIRE_TRY(const auto input,
              expr.operands[0] == nullptr ? *block_output_ : evaluate(*expr.operands[0], scope));
    if (expr.builtin == nullptr) {
      return unsupported(expr.kind == ExprKind::kFilter ? "filter '" : "test '", expr.name, "'");
    }
    QUIRE_TRY(const auto given, arguments(expr, scope));
    return expr.builtin->call(runtime_, input, given);
  }

  Result<Arguments> arguments(const Expr& expr, const ScopePtr& scope) {
    Arguments out;
    const std::size_t positional = expr.operands.size() - expr.named.size();
    for (std::size_t i = 1; i < expr.operands.size(); ++i) {
      QUIRE_TRY(auto value, evaluate(*expr.operands[i], scope));
      if (i < positional) {
        out.positional.push_back(std::move(value));
      } else {
        out.named.emplace_back(expr.named[i - positional], std::move(value));
      }
    }
    return out;
  }

  Result<Value> combine(const Expr& expr, std::vector<Value>& operands) {
    switch (expr.kind) {
      case ExprKind::kAttribute:
        return get_attribute(meter_, operands[0], expr.name);
      case ExprKind::kItem:
        return get_item(meter_, operands[0], operands[1]);
      case ExprKind::kSlice:
        return get_slice(meter_, operands[0], {operands[1], operands[2], operands[3]});
      case ExprKind::kNot:
        return Value::boolean(!truth(operands[0]));
      case ExprKind::kNegate:
        return negate(operands[0]);
      case ExprKind::kBinary:
        return apply(meter_, expr.op, operands[0], operands[1]);
      case ExprKind::kConcat:
        return concat(operands);
      case ExprKind::kDict:
        return dict(operands);
      default:
        return list(operands, expr.kind == ExprKind::kTuple);
    }
  }

  Result<Value> concat(const std::vector<Value>& operands) {
    TextBuilder out(&meter_);
    for (const Value& operand : operands) {
      QUIRE_TRY_STATUS(append_str(meter_, operand, out));
    }
    return Value::string(std::move(out).build());
  }

  Result<Value> dict(std::vector<Value>& operands) {
    DictBuilder out(meter_);
    for (std::size_t i = 0; i < operands.size(); i += 2) {
      QUIRE_TRY_STATUS(check_hashable(operands[i]));
      out.set(operands[i], std::move(operands[i + 1]));
    }
    return std::move(out).build();
  }

  Value list(std::vector<Value>& operands, bool tuple) {
    SequenceBuilder out(meter_, tuple ? SequenceKind::kTuple : SequenceKind::kList);
    for (Value& operand : operands) {
      out.push(std::move(operand));
    }
    return std::move(out).build();
  }

  Runtime& runtime_;
  Meter& meter_;
  const Value* block_output_ = nullptr;  // the input of a filter without one
  int error_line_ = 0;
};

// Runs statements.
class Interpreter {
 public:
  explicit Interpreter(Runtime& runtime)
      : runtime_(runtime), meter_(runtime.meter()), evaluator_(runtime) {}

  Result<TextPtr> run(const Template& parsed, const ScopePtr& variables) {
    TextBuilder out(&meter_);
    const auto flow = run_all(parsed.body, variables, out);
    if (!flow.ok()) {
      Error error = flow.error();
      error.message = base::str_cat("template line ", evaluator_.error_line(), ": ", error.message);
      return error;
    }
    return std::move(out).build();
  }

 private:
  // The end of a statement.
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

  Result<Flow> run_all(const Body& body, const ScopePtr& scope, TextBuilder& out) {
    for (const auto& stmt : body) {
      if (!meter_.step() || !meter_.enter()) {
        evaluator_.note_line(stmt.line);
        return meter_.error();
      }
      auto flow = run_one(stmt, scope, out);
      meter_.leave();
      if (flow.ok() && meter_.failed()) {
        flow = meter_.error();
      }
      if (!flow.ok()) {
        evaluator_.note_line(stmt.line);
      }
      if (!flow.ok() || *flow != Flow::kNormal) {
        return flow;
      }
    }
    return Flow::kNormal;
  }

  Result<Flow> run_one(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
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

  // Runs statements that cannot leave a loop.
  Status run_simple(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
    switch (stmt.kind) {
      case StmtKind::kText:
        out.append(*stmt.text);
        return {};
      case StmtKind::kPrint: {
        QUIRE_TRY(const auto value, evaluator_.evaluate(*stmt.expr, scope));
        return append_str(meter_, value, out);
      }
      case StmtKind::kSet: {
        QUIRE_TRY(const auto value, evaluator_.evaluate(*stmt.expr, scope));
        return assign(stmt.targets, value, *scope);
      }
      case StmtKind::kSetBlock: {
        QUIRE_TRY(const auto value, capture(stmt.body, inner_scope(scope)));
        return assign(stmt.targets, value, *scope);
      }
      case StmtKind::kMacro:
        return assign(stmt.targets, make_macro(stmt, scope), *scope);
      case StmtKind::kCallBlock: {
        const Value caller = make_macro(stmt, scope);
        QUIRE_TRY(const auto value, evaluator_.call(*stmt.expr, scope, &caller));
        return append_str(meter_, value, out);
      }
      default:
        return run_filter_block(stmt, inner_scope(scope), out);
    }
  }

  Result<Flow> run_if(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
    for (const auto& branch : stmt.body) {
      QUIRE_TRY(const auto condition, branch.expr == nullptr
                                          ? Value::boolean(true)
                                          : evaluator_.evaluate(*branch.expr, scope));
      if (truth(condition)) {
        return run_all(branch.body, scope, out);
      }
    }
    return Flow::kNormal;
  }

  // Returns the filter of a loop's `if`; empty without one.
  Loop::Filter loop_filter(const Stmt& stmt, const ScopePtr& scope) {
    if (stmt.condition == nullptr) {
      return {};
    }
    return [this, &stmt, scope](const Value& item) -> Result<bool> {
      const ScopePtr inner = inner_scope(scope);
      QUIRE_TRY_STATUS(assign(stmt.targets, item, *inner));
      QUIRE_TRY(const auto condition, evaluator_.evaluate(*stmt.condition, inner));
      return truth(condition);
    };
  }

  Result<Flow> run_for(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
    QUIRE_TRY(const auto iterable, evaluator_.evaluate(*stmt.expr, scope));
    QUIRE_TRY(auto items, iterate(meter_, iterable));
    const auto loop = std::make_shared<Loop>(std::move(items), loop_filter(stmt, scope));
    // An iteration that `break` or `continue` ends does not keep `else` from running, as in jinja2.
    bool finished_one = false;
    for (;;) {
      QUIRE_TRY(const auto* item, loop->next());
      if (item == nullptr) {
        break;
      }
      meter_.step(kScopeSteps);
      const ScopePtr inner = inner_scope(scope);
      inner->set("loop", Value(loop, kFromTemplate));
      QUIRE_TRY_STATUS(assign(stmt.targets, *item, *inner));
      QUIRE_TRY(const auto flow, run_all(stmt.body, inner, out));
      if (flow == Flow::kBreak) {
        break;
      }
      finished_one = finished_one || flow == Flow::kNormal;
    }
    return finished_one ? Flow::kNormal : run_all(stmt.orelse, inner_scope(scope), out);
  }

  Status run_filter_block(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out) {
    QUIRE_TRY(auto value, capture(stmt.body, scope));
    if (stmt.expr != nullptr) {
      QUIRE_TRY(value, evaluator_.filter(*stmt.expr, scope, Value(value)));
    }
    if (value.text() == nullptr) {
      return invalid("a filter block must make a string, not ", type_name(value));
    }
    out.append(*value.text());
    return {};
  }

  // Returns the output of a body.
  Result<Value> capture(const Body& body, const ScopePtr& scope) {
    TextBuilder out(&meter_);
    QUIRE_TRY([[maybe_unused]] const auto flow, run_all(body, scope, out));
    return Value::string(std::move(out).build());
  }

  Status assign(const std::vector<Target>& targets, const Value& value, Scope& scope) {
    if (targets.size() == 1) {
      return assign_one(targets.front(), value, scope);
    }
    QUIRE_TRY(const auto items, iterate(meter_, value));
    if (items->items.size() != targets.size()) {
      return invalid("cannot unpack ", items->items.size(), " values into ", targets.size(),
                     " names");
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      QUIRE_TRY_STATUS(assign_one(targets[i], items->items[i], scope));
    }
    return {};
  }

  static Status assign_one(const Target& target, const Value& value, Scope& scope) {
    if (target.attribute.empty()) {
      scope.set(target.name, value);
      return {};
    }
    const Value* found = scope.find(target.name);
    const auto* space = found == nullptr ? nullptr : found->get<ScopePtr>();
    if (space == nullptr) {
      return invalid("cannot assign attribute on non-namespace object");
    }
    if (target.attribute.starts_with('_')) {
      return invalid("a namespace cannot have the attribute ", base::quoted(target.attribute));
    }
    (*space)->set(target.attribute, value);
    return {};
  }

  Value make_macro(const Stmt& macro, const ScopePtr& scope) {
    runtime_.keep(scope);
    const auto run = [this, &macro, scope](Runtime&, const Arguments& given) -> Result<Value> {
      meter_.step(kScopeSteps);
      const ScopePtr inner = inner_scope(scope);
      QUIRE_TRY_STATUS(bind_parameters(macro, given, inner));
      return capture(macro.body, inner);
    };
    const std::string name = macro.targets.empty() ? "caller" : macro.targets.front().name;
    return Value::callable(meter_,
                           {.description = base::str_cat("macro '", name, "'"), .call = run});
  }

  // Binds by position, then by name, then defaults.
  Status bind_parameters(const Stmt& macro, const Arguments& given, const ScopePtr& scope) {
    const std::vector<Parameter>& parameters = macro.parameters;
    const std::size_t positional = given.positional.size();
    if (positional > parameters.size()) {
      return invalid("a macro takes not more than ", parameters.size(), " arguments");
    }
    for (const auto& [name, value] : given.named) {
      const auto known = std::ranges::find(parameters, name, &Parameter::name);
      const bool free = known != parameters.end() &&
                        static_cast<std::size_t>(known - parameters.begin()) >= positional;
      if (!free && !(macro.takes_caller && name == "caller")) {
        return invalid("a macro takes no keyword argument '", name, "' here");
      }
      scope->set(free ? std::string_view(known->name) : "caller", value);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, fallback] = parameters[i];
      const auto named = find_name(given.named, name);
      Value value =
          Value::undefined(meter_, base::str_cat("parameter '", name, "' was not provided"));
      if (i < positional) {
        value = given.positional[i];
      } else if (named != given.named.end()) {
        value = named->second;
      } else if (fallback != nullptr) {
        QUIRE_TRY(value, evaluator_.evaluate(*fallback, scope));
      }
      scope->set(name, std::move(value));
    }
    return {};
  }

  ScopePtr inner_scope(const ScopePtr& outer) { return std::make_shared<Scope>(meter_, outer); }

  Runtime& runtime_;
  Meter& meter_;
  Evaluator evaluator_;
};

}  // namespace

Result<TextPtr> run_template(const Template& parsed, Runtime& runtime, const ScopePtr& variables) {
  return Interpreter(runtime).run(parsed, variables);
}

}  // namespace quire::text::jinja
