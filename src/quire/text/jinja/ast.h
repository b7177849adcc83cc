// A parsed template. Immutable, shared by all renderings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

enum class ExprKind : std::uint8_t {
  kConstant,     // constant
  kName,         // name, symbol
  kAttribute,    // operands[0].name
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], null where not given
  kCall,         // operands[0](arguments)
  kFilter,       // operands[0] | name(arguments); operands[0] is null in a filter block
  kTest,         // operands[0] is name(arguments)
  kNot,          // operands[0]
  kNegate,       // operands[0]
  kBinary,       // operands[0] op operands[1]
  kAnd,          // operands[0], operands[1]
  kOr,           // operands[0], operands[1]
  kConcat,       // all operands
  kConditional,  // operands[0] if operands[1] else operands[2], which may be null
  kList,         // operands
  kTuple,        // operands
  kDict,         // operands: key, value, key, value ...
};

// Arguments of a call, a filter or a test as written.
struct ArgumentExprs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int height = 1;  // of the tree, which bounds every recursion over it
  std::vector<ExprPtr> operands = {};
  ArgumentExprs arguments = {};
  std::string name = {};
  Symbol symbol = -1;
  Operator op = Operator::kAdd;
  const Builtin* builtin = nullptr;  // filter or test; null: unknown, an error when it is reached
  Value constant = {};
};

// What an assignment writes to: a variable, or an attribute of a namespace.
struct Target {
  Symbol symbol = -1;
  std::string attribute;  // empty: the variable itself
};
using Targets = std::vector<Target>;  // several unpack the value

struct Stmt;

struct Parameter {
  Symbol symbol = -1;
  std::string name;
  ExprPtr fallback;  // null: none
};

struct Macro {
  std::string name;  // empty: the body of a call block
  std::vector<Parameter> parameters;
  std::vector<Stmt> body;
};

enum class StmtKind : std::uint8_t {
  kText,         // text
  kPrint,        // expr
  kSet,          // targets = expr
  kSetBlock,     // targets = body
  kIf,           // branches, else orelse
  kFor,          // for targets in expr if condition: body, else orelse
  kMacro,        // macro, assigned to targets
  kCallBlock,    // expr, a call, gets macro as its caller
  kFilterBlock,  // body through the filter expr; null for {% generation %}, which is only a scope
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr condition;
  std::vector<Stmt> body;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  TextPtr text = {};
  ExprPtr expr = {};
  ExprPtr condition = {};
  Targets targets = {};
  std::vector<Branch> branches = {};
  std::vector<Stmt> body = {};
  std::vector<Stmt> orelse = {};
  std::unique_ptr<const Macro> macro = {};
};

// Names that the language itself sets, interned first.
inline constexpr Symbol kLoopSymbol = 0;
inline constexpr Symbol kCallerSymbol = 1;

struct Template {
  std::vector<Stmt> body;
  std::vector<std::string> symbols;  // index: Symbol
  // Names that some path through the template looks up before it sets them, in order of the
  // alphabet, without the language's own functions.
  std::vector<std::string> variables;
};

}  // namespace quire::text::jinja
