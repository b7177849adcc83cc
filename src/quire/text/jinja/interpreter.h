// Runs a parsed template: statements write text, expressions make values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/loop.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// One rendering of one template; both the template and the runtime must outlive it.
class Interpreter {
 public:
  Interpreter(const Template& parsed, Runtime& runtime) : parsed_(parsed), runtime_(runtime) {}

  // The text of the template with the variables of `variables`. Errors are kInvalidArgument or
  // kUnsupported and name the line.
  [[nodiscard]] Result<TextPtr> run(const ScopePtr& variables);

 private:
  // How a statement ended.
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

  [[nodiscard]] Result<Flow> run_all(const std::vector<Stmt>& body, const ScopePtr& scope,
                                     TextBuilder& out);
  [[nodiscard]] Result<Flow> run_one(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  [[nodiscard]] Result<Flow> run_if(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  // What a loop's `if` keeps.
  [[nodiscard]] LoopContext::Filter loop_filter(const Stmt& stmt, const ScopePtr& scope);
  [[nodiscard]] Result<Flow> run_for(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  [[nodiscard]] Result<Flow> run_with(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  Status run_simple(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  Status run_call_block(const Stmt& stmt, const ScopePtr& scope, TextBuilder& out);
  // The output of a body in a scope of its own, through `filter` if that is not null.
  [[nodiscard]] Result<Value> capture(const std::vector<Stmt>& body, const Expr* filter,
                                      const ScopePtr& scope);
  Status assign(const Target& target, const Value& value, Scope& scope);
  Status unpack(const Target& target, const Value& value, Scope& scope);

  [[nodiscard]] Value make_macro(const Macro& macro, const ScopePtr& scope);
  [[nodiscard]] Result<Value> call_macro(const Macro& macro, const ScopePtr& outer,
                                         const Arguments& arguments);
  Status bind_parameters(const Macro& macro, Arguments arguments, const ScopePtr& scope);

  [[nodiscard]] Result<Value> evaluate(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_node(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_operator(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_logical(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_access(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_name(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_compare(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_concat(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_literal(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_call(const Expr& expr, const ScopePtr& scope,
                                            const Value* caller);
  [[nodiscard]] Result<Value> evaluate_filter(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Value> evaluate_test(const Expr& expr, const ScopePtr& scope);
  [[nodiscard]] Result<Arguments> evaluate_arguments(const ArgumentExprs& exprs,
                                                     const ScopePtr& scope);

  [[nodiscard]] Meter& meter() { return runtime_.meter(); }
  [[nodiscard]] ScopePtr inner_scope(const ScopePtr& outer) {
    return std::make_shared<Scope>(meter(), outer);
  }

  const Template& parsed_;
  Runtime& runtime_;
  const Value* block_output_ = nullptr;  // the input of a filter without one
  int error_line_ = 0;                   // of the innermost node that failed
};

}  // namespace quire::text::jinja
