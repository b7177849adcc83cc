#include "quire/text/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/filters.h"
#include "quire/text/jinja/functions.h"
#include "quire/text/jinja/lexer.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

constexpr int kMaxExpressionHeight = 200;

// Levels of precedence; the higher one binds tighter.
enum Level : std::uint8_t {
  kOrs,
  kAnds,
  kNots,
  kComparisons,
  kSums,
  kConcats,
  kProducts,
  kUnaries
};

// Names that mean something in jinja2 which is not supported here.
constexpr std::array<std::string_view, 3> kRefusedNames = {"self", "varargs", "kwargs"};

}  // namespace

struct ExpressionParser::Infix {
  std::string_view text;
  Level level;
  ExprKind kind;
  Operator op = Operator::kAdd;
};

SymbolTable::SymbolTable() {
  intern("loop");
  intern("caller");
}

Symbol SymbolTable::intern(const std::string& name) {
  const auto [entry, fresh] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
  if (fresh) {
    names_.push_back(name);
    is_set_.push_back(false);
    is_read_.push_back(false);
  }
  return entry->second;
}

void SymbolTable::look_up(Symbol symbol) {
  const auto at = static_cast<std::size_t>(symbol);
  is_read_[at] = is_read_[at] || !is_set_[at];
}

void SymbolTable::assign(Symbol symbol) {
  const auto at = static_cast<std::size_t>(symbol);
  if (!is_set_[at]) {
    is_set_[at] = true;
    assigned_.push_back(symbol);
  }
}

void SymbolTable::forget(std::size_t mark) {
  for (; assigned_.size() > mark; assigned_.pop_back()) {
    is_set_[static_cast<std::size_t>(assigned_.back())] = false;
  }
}

std::vector<std::string> SymbolTable::looked_up() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (is_read_[i] && find_builtin(global_functions(), names_[i]) == nullptr) {
      out.push_back(names_[i]);
    }
  }
  std::ranges::sort(out);
  return out;
}

Expr ExpressionParser::node(ExprKind kind) const {
  return {.kind = kind, .line = tokens_.current().line};
}

Result<ExprPtr> ExpressionParser::finish(Expr node) const {
  const auto visit = [&](const ExprPtr& child) {
    node.height = std::max(node.height, child == nullptr ? 0 : child->height + 1);
  };
  std::ranges::for_each(node.operands, visit);
  std::ranges::for_each(node.arguments.positional, visit);
  for (const auto& [name, value] : node.arguments.named) {
    visit(value);
  }
  if (node.height > kMaxExpressionHeight) {
    return tokens_.fail("an expression has more than ", kMaxExpressionHeight, " nested operations");
  }
  return ExprPtr(std::make_unique<const Expr>(std::move(node)));
}

Result<ExprPtr> ExpressionParser::expression(bool with_conditional) {
  QUIRE_TRY_STATUS(tokens_.enter());
  auto parsed = with_conditional ? conditional() : binary(kOrs);
  tokens_.leave();
  return parsed;
}

Result<ExprPtr> ExpressionParser::tuple(bool with_conditional, bool may_be_empty) {
  Expr out = node(ExprKind::kTuple);
  bool is_tuple = may_be_empty;
  while (!tokens_.is(TokenKind::kVariableEnd) && !tokens_.is(TokenKind::kBlockEnd) &&
         !tokens_.is_op(")")) {
    QUIRE_TRY(auto item, expression(with_conditional));
    out.operands.push_back(std::move(item));
    is_tuple = tokens_.skip_op(",");
    if (!is_tuple) {
      break;
    }
    may_be_empty = true;
  }
  if (out.operands.size() == 1 && !is_tuple) {
    return std::move(out.operands.front());
  }
  return out.operands.empty() && !may_be_empty ? tokens_.fail_expected("an expression")
                                               : finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::conditional() {
  const std::size_t unknown = mark_unknown();
  QUIRE_TRY(auto value, binary(kOrs));
  while (tokens_.is_name("if")) {
    Expr out = node(ExprKind::kConditional);
    tokens_.take();
    QUIRE_TRY(auto condition, binary(kOrs));
    out.operands.push_back(std::move(value));
    out.operands.push_back(std::move(condition));
    out.operands.push_back(nullptr);
    if (tokens_.skip_name("else")) {
      QUIRE_TRY(out.operands[2], expression());
    }
    forgive_unknown(unknown);
    QUIRE_TRY(value, finish(std::move(out)));
  }
  return value;
}

const ExpressionParser::Infix* ExpressionParser::next_infix(int level) const {
  static constexpr Infix kInfixes[] = {
      {"or", kOrs, ExprKind::kOr},
      {"and", kAnds, ExprKind::kAnd},
      {"==", kComparisons, ExprKind::kBinary, Operator::kEqual},
      {"!=", kComparisons, ExprKind::kBinary, Operator::kNotEqual},
      {"<", kComparisons, ExprKind::kBinary, Operator::kLess},
      {"<=", kComparisons, ExprKind::kBinary, Operator::kLessEqual},
      {">", kComparisons, ExprKind::kBinary, Operator::kGreater},
      {">=", kComparisons, ExprKind::kBinary, Operator::kGreaterEqual},
      {"in", kComparisons, ExprKind::kBinary, Operator::kIn},
      {"not", kComparisons, ExprKind::kBinary, Operator::kNotIn},  // and "in" behind it
      {"+", kSums, ExprKind::kBinary, Operator::kAdd},
      {"-", kSums, ExprKind::kBinary, Operator::kSubtract},
      {"~", kConcats, ExprKind::kConcat},
      {"*", kProducts, ExprKind::kBinary, Operator::kMultiply},
      {"/", kProducts, ExprKind::kBinary, Operator::kDivide},
      {"//", kProducts, ExprKind::kBinary, Operator::kFloorDivide},
      {"%", kProducts, ExprKind::kBinary, Operator::kModulo}};
  if (!tokens_.is(TokenKind::kOperator) && !tokens_.is(TokenKind::kName)) {
    return nullptr;
  }
  const auto* const found = std::ranges::find(kInfixes, tokens_.current().text, &Infix::text);
  const bool is_none = found == std::end(kInfixes) || found->level != level ||
                       (found->op == Operator::kNotIn && tokens_.ahead().text != "in");
  return is_none ? nullptr : found;
}

Result<ExprPtr> ExpressionParser::binary(int level) {
  if (level == kUnaries) {
    return unary(true);
  }
  if (level == kNots && tokens_.is_name("not")) {
    return prefixed(ExprKind::kNot, level);
  }
  QUIRE_TRY(auto left, binary(level + 1));
  for (int count = 0; const Infix* infix = next_infix(level); ++count) {
    if (level == kComparisons && count > 0) {
      return tokens_.refuse("a chain of comparisons");
    }
    Expr out = node(infix->kind);
    out.op = infix->op;
    out.operands.push_back(std::move(left));
    do {
      tokens_.take();
      if (infix->op == Operator::kNotIn) {
        tokens_.take();
      }
      QUIRE_TRY(auto right, binary(level + 1));
      out.operands.push_back(std::move(right));
    } while (infix->kind == ExprKind::kConcat && tokens_.is_op("~"));
    QUIRE_TRY(left, finish(std::move(out)));
  }
  return tokens_.is_op("**") ? tokens_.refuse("the operator '**'")
                             : Result<ExprPtr>(std::move(left));
}

// `not` and `-` with their operand.
Result<ExprPtr> ExpressionParser::prefixed(ExprKind kind, int level) {
  Expr out = node(kind);
  tokens_.take();
  QUIRE_TRY_STATUS(tokens_.enter());
  QUIRE_TRY(auto operand, kind == ExprKind::kNot ? binary(level) : unary(false));
  tokens_.leave();
  out.operands.push_back(std::move(operand));
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::unary(bool with_filters) {
  QUIRE_TRY(auto value, tokens_.is_op("-") ? prefixed(ExprKind::kNegate, kUnaries) : primary());
  return postfix(std::move(value), with_filters);
}

Result<ExprPtr> ExpressionParser::primary() {
  if (tokens_.is(TokenKind::kName)) {
    return name();
  }
  if (tokens_.is(TokenKind::kInteger) || tokens_.is(TokenKind::kFloat)) {
    return number();
  }
  if (tokens_.is(TokenKind::kString)) {
    Expr out = node(ExprKind::kConstant);
    std::string text;
    while (tokens_.is(TokenKind::kString)) {
      text += tokens_.take().text;
    }
    out.constant = Value::string(make_text(nullptr, text, kFromTemplate));
    return finish(std::move(out));
  }
  if (tokens_.skip_op("(")) {
    QUIRE_TRY(auto inner, tuple(true, true));
    QUIRE_TRY_STATUS(tokens_.expect_op(")"));
    return inner;
  }
  return tokens_.is_op("[") || tokens_.is_op("{") ? list_or_dict()
                                                  : tokens_.fail_expected("an expression");
}

Result<ExprPtr> ExpressionParser::name() {
  Expr out = node(ExprKind::kConstant);
  const std::string& text = tokens_.current().text;
  if (std::ranges::find(kRefusedNames, text) != kRefusedNames.end()) {
    return tokens_.refuse("the name '", text, "'");
  }
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    out.constant = Value::boolean(text == "true" || text == "True");
  } else if (text != "none" && text != "None") {
    out.kind = ExprKind::kName;
    out.name = text;
    out.symbol = symbols_.intern(text);
    symbols_.look_up(out.symbol);
  }
  tokens_.take();
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::number() {
  Expr out = node(ExprKind::kConstant);
  const std::string& text = tokens_.current().text;
  const char* const end = text.data() + text.size();
  std::int64_t integer = 0;
  double real = 0;
  const bool is_integer = tokens_.is(TokenKind::kInteger);
  const auto parsed = is_integer ? std::from_chars(text.data(), end, integer)
                                 : std::from_chars(text.data(), end, real);
  if (parsed.ec != std::errc()) {
    return tokens_.fail("the number ", text, " is beyond 64 bits");
  }
  out.constant = is_integer ? Value::integer(integer) : Value::real(real);
  tokens_.take();
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::list_or_dict() {
  const bool is_dict = tokens_.is_op("{");
  const std::string_view close = is_dict ? "}" : "]";
  Expr out = node(is_dict ? ExprKind::kDict : ExprKind::kList);
  tokens_.take();
  while (!tokens_.is_op(close)) {
    QUIRE_TRY(auto item, expression());
    out.operands.push_back(std::move(item));
    if (is_dict) {
      QUIRE_TRY_STATUS(tokens_.expect_op(":"));
      QUIRE_TRY(auto value, expression());
      out.operands.push_back(std::move(value));
    }
    if (!tokens_.skip_op(",")) {
      break;
    }
  }
  QUIRE_TRY_STATUS(tokens_.expect_op(close));
  return finish(std::move(out));
}

// Attributes, subscripts and calls; then, if wanted, filters, tests and calls.
Result<ExprPtr> ExpressionParser::postfix(ExprPtr operand, bool with_filters) {
  for (bool filtered = false;;) {
    if (!filtered && tokens_.is_op(".")) {
      QUIRE_TRY(operand, attribute(std::move(operand)));
    } else if (!filtered && tokens_.is_op("[")) {
      QUIRE_TRY(operand, subscript(std::move(operand)));
    } else if (tokens_.is_op("(")) {
      QUIRE_TRY(operand, call(std::move(operand)));
    } else if (with_filters && tokens_.skip_op("|")) {
      QUIRE_TRY(operand, filters(std::move(operand)));
      filtered = true;
    } else if (with_filters && tokens_.is_name("is")) {
      QUIRE_TRY(operand, test(std::move(operand)));
      filtered = true;
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::attribute(ExprPtr operand) {
  Expr out = node(ExprKind::kAttribute);
  tokens_.take();
  out.operands.push_back(std::move(operand));
  if (tokens_.is(TokenKind::kInteger)) {
    QUIRE_TRY(auto index, number());
    out.kind = ExprKind::kItem;
    out.operands.push_back(std::move(index));
    return finish(std::move(out));
  }
  if (!tokens_.is(TokenKind::kName)) {
    return tokens_.fail_expected("a name or number");
  }
  out.name = tokens_.take().text;
  return finish(std::move(out));
}

// The key, or the three parts of a slice.
Result<ExprPtr> ExpressionParser::subscript(ExprPtr operand) {
  Expr out = node(ExprKind::kItem);
  out.operands.push_back(std::move(operand));
  tokens_.take();
  do {
    ExprPtr part;
    if (!tokens_.is_op(":") && !tokens_.is_op("]")) {
      QUIRE_TRY(part, expression());
    }
    out.operands.push_back(std::move(part));
  } while (out.operands.size() < 4 && tokens_.skip_op(":"));
  if (tokens_.is_op(",")) {
    return tokens_.refuse("a subscript with several parts");
  }
  if (out.operands.size() > 2) {
    out.kind = ExprKind::kSlice;
    out.operands.resize(4);
  } else if (out.operands[1] == nullptr) {
    return tokens_.fail_expected("an expression");
  }
  QUIRE_TRY_STATUS(tokens_.expect_op("]"));
  return finish(std::move(out));
}

Status ExpressionParser::argument(ArgumentExprs& arguments) {
  if (tokens_.is_op("*") || tokens_.is_op("**")) {
    return tokens_.refuse("spreading arguments with '", tokens_.current().text, "'");
  }
  const bool named = tokens_.is(TokenKind::kName) && tokens_.ahead().kind == TokenKind::kOperator &&
                     tokens_.ahead().text == "=";
  if (!named) {
    if (!arguments.named.empty()) {
      return tokens_.fail("an argument without a name follows one with a name");
    }
    QUIRE_TRY(auto value, expression());
    arguments.positional.push_back(std::move(value));
    return {};
  }
  std::string name = tokens_.take().text;
  tokens_.take();
  QUIRE_TRY(auto value, expression());
  for (const auto& other : arguments.named) {
    if (other.first == name) {
      return tokens_.fail("keyword argument repeated: ", name);
    }
  }
  arguments.named.emplace_back(std::move(name), std::move(value));
  return {};
}

Result<ArgumentExprs> ExpressionParser::arguments() {
  ArgumentExprs out;
  QUIRE_TRY_STATUS(tokens_.expect_op("("));
  while (!tokens_.is_op(")")) {
    QUIRE_TRY_STATUS(argument(out));
    if (!tokens_.skip_op(",")) {
      break;
    }
  }
  QUIRE_TRY_STATUS(tokens_.expect_op(")"));
  return out;
}

Result<ExprPtr> ExpressionParser::call(ExprPtr callee) {
  Expr out = node(ExprKind::kCall);
  out.operands.push_back(std::move(callee));
  QUIRE_TRY(out.arguments, arguments());
  return finish(std::move(out));
}

void ExpressionParser::look_up(Expr& node, const Builtin* (*find)(std::string_view),
                               std::string_view kind) {
  node.builtin = find(node.name);
  if (node.builtin == nullptr) {
    unknown_.push_back(unsupported("template line ", node.line, ": ", kind, " '", node.name, "'"));
  }
}

Result<ExprPtr> ExpressionParser::filters(ExprPtr input) {
  do {
    Expr out = node(ExprKind::kFilter);
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.fail_expected("the name of a filter");
    }
    out.name = tokens_.take().text;
    look_up(out, find_filter, "filter");
    if (tokens_.is_op("(")) {
      QUIRE_TRY(out.arguments, arguments());
    }
    out.operands.push_back(std::move(input));
    QUIRE_TRY(input, finish(std::move(out)));
  } while (tokens_.skip_op("|"));
  return input;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr operand) {
  Expr out = node(ExprKind::kTest);
  tokens_.take();
  const bool negated = tokens_.skip_name("not");
  if (!tokens_.is(TokenKind::kName)) {
    return tokens_.fail_expected("the name of a test");
  }
  out.name = tokens_.take().text;
  look_up(out, find_test, "test");
  const bool word = tokens_.is(TokenKind::kName) && !tokens_.is_name("else") &&
                    !tokens_.is_name("or") && !tokens_.is_name("and");
  if (tokens_.is_op("(")) {
    QUIRE_TRY(out.arguments, arguments());
  } else if (tokens_.is_name("is")) {
    return tokens_.fail("tests cannot be chained with 'is'");
  } else if (word || tokens_.is(TokenKind::kString) || tokens_.is(TokenKind::kInteger) ||
             tokens_.is(TokenKind::kFloat) || tokens_.is_op("[") || tokens_.is_op("{")) {
    QUIRE_TRY(auto argument, primary());
    QUIRE_TRY(argument, postfix(std::move(argument), false));
    out.arguments.positional.push_back(std::move(argument));
  }
  out.operands.push_back(std::move(operand));
  Expr negation{.kind = ExprKind::kNot, .line = out.line};
  QUIRE_TRY(auto tested, finish(std::move(out)));
  if (!negated) {
    return tested;
  }
  negation.operands.push_back(std::move(tested));
  return finish(std::move(negation));
}

}  // namespace quire::text::jinja
