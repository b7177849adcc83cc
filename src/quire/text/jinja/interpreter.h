// Runs a parsed template: statements write text, expressions make values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// One rendering of one template; both the template and the runtime must outlive it.
class Interpreter {
 public:
  Interpreter(const Template& parsed, Runtime& runtime) : parsed_(parsed), runtime_(runtime) {}

  // Returns the text of the template with the variables of `variables`. Errors are kInvalidArgument
  // or kUnsupported and name the line.
  [[nodiscard]] Result<TextPtr> run(const ScopePtr& variables);

 private:
  // How a statement ended.
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };
  using Body = std::vector<Stmt>;

  Result<Flow> run_all(const Body& body, const ScopePtr& scope, TextBuilder& out);
  Result<Flow> run_one(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  Result<Flow> run_if(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  Result<Flow> run_for(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  Status run_simple(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  Status run_filter_block(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  // What a loop's `if` keeps.
  [[nodiscard]] Loop::Filter loop_filter(const Stmt& stmt, const ScopePtr& scope);
  // The output of a body in `scope`.
  Result<Value> capture(const Body& body, const ScopePtr& scope);
  Status assign(const Targets& targets, const Value& value, Scope& scope);
  Status assign_one(const Target& target, const Value& value, Scope& scope);

  [[nodiscard]] Value make_macro(const Macro& macro, const ScopePtr& scope);
  Status bind_parameters(const Macro& macro, const Arguments& arguments, const ScopePtr& scope);

  Result<Value> evaluate(const Expr& expr, const ScopePtr& scope);
  Result<Value> evaluate_node(const Expr& expr, const ScopePtr& scope);
  Result<Value> evaluate_lazy(const Expr& expr, const ScopePtr& scope);
  Result<Value> combine(const Expr& expr, std::vector<Value>& operands);
  // `caller` is the body of a call block, or null.
  Result<Value> evaluate_call(const Expr& expr, const ScopePtr& scope, const Value* caller);
  Result<Value> evaluate_builtin(const Expr& expr, const ScopePtr& scope);
  Result<Arguments> evaluate_arguments(const ArgumentExprs& exprs, const ScopePtr& scope);

  // Notes the line of the innermost node that failed.
  void note_line(int line) { error_line_ = error_line_ == 0 ? line : error_line_; }
  [[nodiscard]] Meter& meter() { return runtime_.meter(); }
  [[nodiscard]] ScopePtr inner_scope(const ScopePtr& outer) {
    return std::make_shared<Scope>(meter(), outer);
  }

  const Template& parsed_;
  Runtime& runtime_;
  const Value* block_output_ = nullptr;  // the input of a filter without one
  int error_line_ = 0;
};

}  // namespace quire::text::jinja
