// A parsed template. Immutable, shared by all renderings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/value.h"
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

enum class ExprKind : std::uint8_t {
  kConstant,     // constant
  kName,         // name
  kAttribute,    // operands[0].name
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], null where not given
  kCall,         // operands[0](operands[1], ...), the last ones with the names of `named`
  kFilter,       // operands[0] | name(operands[1], ...); operands[0] is null in a filter block
  kTest,         // operands[0] is name(operands[1], ...)
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

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int height = 1;  // height of the tree, which bounds every recursion over it
  std::vector<ExprPtr> operands = {};
  std::string name = {};
  std::vector<std::string> named = {};
  Operator op = Operator::kAdd;
  const Builtin* builtin = nullptr;  // filter or test; null: unknown, an error when it is reached
  Value constant = {};
};

// Names the thing that an assignment writes to: a variable, or an attribute of a namespace.
struct Target {
  std::string name;
  std::string attribute;  // empty: the variable itself
};

struct Stmt;
using Body = std::vector<Stmt>;

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: none
};

enum class StmtKind : std::uint8_t {
  kText,         // text
  kPrint,        // expr
  kSet,          // targets = expr
  kSetBlock,     // targets = body
  kIf,           // the first of the branches in body whose expr is true or null
  kBranch,       // expr, body
  kFor,          // for targets in expr if condition: body, else orelse
  kMacro,        // targets = macro of parameters and body
  kCallBlock,    // expr, a call, gets a macro of parameters and body as its caller
  kFilterBlock,  // body through the filter expr; null for {% generation %}, which is only a scope
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  TextPtr text = {};
  ExprPtr expr = {};
  ExprPtr condition = {};
  std::vector<Target> targets = {};  // several unpack the value
  std::vector<Parameter> parameters = {};
  Body body = {};
  Body orelse = {};
  bool takes_caller = false;  // true: a macro or call block whose body looks `caller` up
};

struct Template {
  Body body;
  // Names that some path through the template looks up before it sets them, in order of the
  // alphabet, without the language's own functions.
  std::vector<std::string> variables;
  // Names and strings that stand in its tags, in order of the alphabet: keys and roles that it may
  // read are among them.
  std::vector<std::string> words;
};

}  // namespace quire::text::jinja
