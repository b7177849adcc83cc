// A parsed template. Immutable, shared by all renderings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/text/jinja/arithmetic.h"
#include "quire/text/jinja/filters.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

enum class ExprKind : std::uint8_t {
  kConstant,     // constant
  kName,         // symbol
  kAttribute,    // operands[0].name
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], null where not given
  kCall,         // operands[0](arguments)
  kFilter,       // operands[0] | name(arguments); operands[0] is null in a filter block
  kTest,         // operands[0] is name(arguments)
  kNot,          // operands[0]
  kNegate,       // operands[0]
  kPlus,         // operands[0]
  kBinary,       // operands[0] op operands[1]
  kCompare,      // operands[0] comparisons[0] operands[1] comparisons[1] operands[2] ...
  kAnd,          // operands[0], operands[1]
  kOr,           // operands[0], operands[1]
  kConcat,       // all operands
  kConditional,  // operands[0] if operands[1] else operands[2], which may be null
  kList,         // operands
  kTuple,        // operands
  kDict,         // operands: key, value, key, value ...
};

enum class Comparison : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

// Arguments of a call, a filter or a test as written.
struct ArgumentExprs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr spread;        // *spread, or null
  ExprPtr spread_named;  // **spread_named, or null
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int height = 1;  // of the tree, which bounds every recursion over it
  std::vector<ExprPtr> operands = {};
  std::vector<Comparison> comparisons = {};
  ArgumentExprs arguments = {};
  std::string name = {};
  Symbol symbol = -1;
  Operator op = Operator::kAdd;
  Filter filter = nullptr;  // null: unknown, an error when it is reached
  Test test = nullptr;      // null: unknown, an error when it is reached
  Value constant = {};
};

// What an assignment writes to.
struct Target {
  int line = 0;
  Symbol symbol = -1;     // a variable, or the namespace of `attribute`
  std::string attribute;  // empty: the variable itself
  bool is_tuple = false;  // then only `items` counts
  std::vector<Target> items;
};

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
  // Whether the body uses these names without having set them.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StmtKind : std::uint8_t {
  kText,         // text
  kPrint,        // expr
  kSet,          // target = expr
  kSetBlock,     // target = body, through the filter expr if not null
  kIf,           // branches, else orelse
  kFor,          // for target in expr if condition: body, else orelse
  kMacro,        // macro; target is its name
  kCallBlock,    // expr, a call, gets macro as its caller
  kFilterBlock,  // body through the filter expr
  kWith,         // body with assignments
  kScope,        // body, whose variables end with it: {% generation %}
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
  Target target = {};
  std::vector<std::pair<Target, ExprPtr>> assignments = {};
  std::vector<Branch> branches = {};
  std::vector<Stmt> body = {};
  std::vector<Stmt> orelse = {};
  std::unique_ptr<const Macro> macro = {};
};

// Names that the language itself sets, interned first.
inline constexpr Symbol kLoopSymbol = 0;
inline constexpr Symbol kCallerSymbol = 1;
inline constexpr Symbol kVarargsSymbol = 2;
inline constexpr Symbol kKwargsSymbol = 3;

struct Template {
  std::vector<Stmt> body;
  std::vector<std::string> symbols;  // index: Symbol
};

}  // namespace quire::text::jinja
