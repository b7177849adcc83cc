#include "quire/text/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/arithmetic.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/lexer.h"
#include "quire/text/jinja/numbers.h"
#include "quire/text/jinja/parser.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

std::vector<ExprPtr> operands_of(ExprPtr a, ExprPtr b = nullptr) {
  std::vector<ExprPtr> out;
  out.push_back(std::move(a));
  if (b != nullptr) {
    out.push_back(std::move(b));
  }
  return out;
}

struct OperatorName {
  std::string_view text;
  Operator op;
};
constexpr OperatorName kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr OperatorName kProducts[] = {{"*", Operator::kMultiply},
                                      {"/", Operator::kDivide},
                                      {"//", Operator::kFloorDivide},
                                      {"%", Operator::kModulo}};

template <std::size_t kCount>
std::optional<Operator> find_operator(const OperatorName (&names)[kCount], const Token& token) {
  for (const auto& name : names) {
    if (token.kind == TokenKind::kOperator && token.text == name.text) {
      return name.op;
    }
  }
  return std::nullopt;
}

}  // namespace

SymbolTable::SymbolTable() {
  for (const auto* name : {"loop", "caller", "varargs", "kwargs"}) {
    intern(name);
  }
}

Symbol SymbolTable::intern(const std::string& name) {
  const auto [entry, fresh] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
  if (fresh) {
    names_.push_back(name);
  }
  return entry->second;
}

bool TokenStream::skip_op(std::string_view op) {
  const bool found = is_op(op);
  if (found) {
    take();
  }
  return found;
}

bool TokenStream::skip_name(std::string_view name) {
  const bool found = is_name(name);
  if (found) {
    take();
  }
  return found;
}

Status TokenStream::expect_op(std::string_view op) {
  return skip_op(op) ? Status() : fail_expected(base::str_cat("'", op, "'"));
}

Status TokenStream::expect(TokenKind kind, std::string_view what) {
  if (!is(kind)) {
    return fail_expected(what);
  }
  take();
  return {};
}

Error TokenStream::fail_expected(std::string_view what) const {
  if (is(TokenKind::kEnd)) {
    return fail("unexpected end of template, expected ", what);
  }
  return fail("expected ", what, ", got ", base::quoted(current().text));
}

Status TokenStream::enter() {
  if (depth_ >= kMaxNesting) {
    return fail("the template nests deeper than ", kMaxNesting);
  }
  ++depth_;
  return {};
}

Status ExpressionParser::report_unknown(std::size_t mark) const {
  return mark < unknown_.size() ? Status(unknown_[mark]) : Status();
}

SpecialUse ExpressionParser::end_macro() {
  const SpecialUse use = special_uses_.back();
  special_uses_.pop_back();
  return use;
}

Expr ExpressionParser::node(ExprKind kind) const {
  return {.kind = kind, .line = tokens_.current().line};
}

Result<ExprPtr> ExpressionParser::finish(Expr node) const {
  const auto visit = [&](const ExprPtr& child) {
    if (child != nullptr) {
      node.height = std::max(node.height, child->height + 1);
    }
  };
  std::for_each(node.operands.begin(), node.operands.end(), visit);
  std::for_each(node.arguments.positional.begin(), node.arguments.positional.end(), visit);
  for (const auto& [name, value] : node.arguments.named) {
    visit(value);
  }
  visit(node.arguments.spread);
  visit(node.arguments.spread_named);
  if (node.height > kMaxExpressionHeight) {
    return tokens_.fail("an expression has more than ", kMaxExpressionHeight, " nested operations");
  }
  return ExprPtr(std::make_unique<const Expr>(std::move(node)));
}

Result<ExprPtr> ExpressionParser::expression(bool with_conditional) {
  QUIRE_TRY_STATUS(tokens_.enter());
  auto parsed = with_conditional ? conditional() : logical_or();
  tokens_.leave();
  return parsed;
}

Result<ExprPtr> ExpressionParser::tuple(bool with_conditional, std::string_view end_name,
                                        bool in_parentheses) {
  Expr out = node(ExprKind::kTuple);
  bool is_tuple = false;
  for (;;) {
    const bool at_end = tokens_.is(TokenKind::kVariableEnd) || tokens_.is(TokenKind::kBlockEnd) ||
                        tokens_.is_op(")") || (!end_name.empty() && tokens_.is_name(end_name));
    if (at_end) {
      break;
    }
    QUIRE_TRY(auto item, expression(with_conditional));
    out.operands.push_back(std::move(item));
    if (!tokens_.skip_op(",")) {
      break;
    }
    is_tuple = true;
  }
  if (is_tuple) {
    return finish(std::move(out));
  }
  if (!out.operands.empty()) {
    return std::move(out.operands.front());
  }
  if (!in_parentheses) {
    return tokens_.fail_expected("an expression");
  }
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::conditional() {
  const std::size_t unknown = mark();
  QUIRE_TRY(auto value, logical_or());
  while (tokens_.is_name("if")) {
    Expr out = node(ExprKind::kConditional);
    tokens_.take();
    QUIRE_TRY(auto condition, logical_or());
    out.operands = operands_of(std::move(value), std::move(condition));
    out.operands.push_back(nullptr);
    if (tokens_.skip_name("else")) {
      QUIRE_TRY(out.operands[2], expression());
    }
    forgive_unknown(unknown);
    QUIRE_TRY(value, finish(std::move(out)));
  }
  return value;
}

Result<ExprPtr> ExpressionParser::logical_or() {
  QUIRE_TRY(auto left, logical_and());
  while (tokens_.is_name("or")) {
    Expr out = node(ExprKind::kOr);
    tokens_.take();
    QUIRE_TRY(auto right, logical_and());
    out.operands = operands_of(std::move(left), std::move(right));
    QUIRE_TRY(left, finish(std::move(out)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::logical_and() {
  QUIRE_TRY(auto left, logical_not());
  while (tokens_.is_name("and")) {
    Expr out = node(ExprKind::kAnd);
    tokens_.take();
    QUIRE_TRY(auto right, logical_not());
    out.operands = operands_of(std::move(left), std::move(right));
    QUIRE_TRY(left, finish(std::move(out)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::logical_not() {
  if (!tokens_.is_name("not")) {
    return compare();
  }
  Expr out = node(ExprKind::kNot);
  tokens_.take();
  QUIRE_TRY_STATUS(tokens_.enter());
  QUIRE_TRY(auto operand, logical_not());
  tokens_.leave();
  out.operands = operands_of(std::move(operand));
  return finish(std::move(out));
}

bool ExpressionParser::next_comparison(Comparison& comparison) {
  constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
  for (std::size_t i = 0; i < kSigns.size(); ++i) {
    if (tokens_.skip_op(kSigns[i])) {
      comparison = static_cast<Comparison>(i);
      return true;
    }
  }
  if (tokens_.skip_name("in")) {
    comparison = Comparison::kIn;
    return true;
  }
  if (tokens_.is_name("not") && tokens_.ahead().kind == TokenKind::kName &&
      tokens_.ahead().text == "in") {
    tokens_.take();
    tokens_.take();
    comparison = Comparison::kNotIn;
    return true;
  }
  return false;
}

Result<ExprPtr> ExpressionParser::compare() {
  QUIRE_TRY(auto first, sum());
  Expr out = node(ExprKind::kCompare);
  out.operands = operands_of(std::move(first));
  for (Comparison comparison{}; next_comparison(comparison);) {
    out.comparisons.push_back(comparison);
    QUIRE_TRY(auto operand, sum());
    out.operands.push_back(std::move(operand));
  }
  if (out.comparisons.empty()) {
    return std::move(out.operands.front());
  }
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::sum() {
  QUIRE_TRY(auto left, concat());
  while (const auto op = find_operator(kSums, tokens_.current())) {
    Expr out = node(ExprKind::kBinary);
    tokens_.take();
    out.op = *op;
    QUIRE_TRY(auto right, concat());
    out.operands = operands_of(std::move(left), std::move(right));
    QUIRE_TRY(left, finish(std::move(out)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::concat() {
  QUIRE_TRY(auto first, product());
  if (!tokens_.is_op("~")) {
    return first;
  }
  Expr out = node(ExprKind::kConcat);
  out.operands = operands_of(std::move(first));
  while (tokens_.skip_op("~")) {
    QUIRE_TRY(auto operand, product());
    out.operands.push_back(std::move(operand));
  }
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::product() {
  QUIRE_TRY(auto left, power());
  while (const auto op = find_operator(kProducts, tokens_.current())) {
    Expr out = node(ExprKind::kBinary);
    tokens_.take();
    out.op = *op;
    QUIRE_TRY(auto right, power());
    out.operands = operands_of(std::move(left), std::move(right));
    QUIRE_TRY(left, finish(std::move(out)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::power() {
  QUIRE_TRY(auto left, unary(true));
  while (tokens_.is_op("**")) {
    Expr out = node(ExprKind::kBinary);
    tokens_.take();
    out.op = Operator::kPower;
    QUIRE_TRY(auto right, unary(true));
    out.operands = operands_of(std::move(left), std::move(right));
    QUIRE_TRY(left, finish(std::move(out)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::unary(bool with_filters) {
  ExprPtr value;
  if (tokens_.is_op("-") || tokens_.is_op("+")) {
    Expr out = node(tokens_.is_op("-") ? ExprKind::kNegate : ExprKind::kPlus);
    tokens_.take();
    QUIRE_TRY_STATUS(tokens_.enter());
    QUIRE_TRY(auto operand, unary(false));
    tokens_.leave();
    out.operands = operands_of(std::move(operand));
    QUIRE_TRY(value, finish(std::move(out)));
  } else {
    QUIRE_TRY(value, primary());
  }
  QUIRE_TRY(value, postfix(std::move(value)));
  return with_filters ? postfix_filters(std::move(value)) : Result<ExprPtr>(std::move(value));
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
    QUIRE_TRY(auto inner, tuple(true, {}, true));
    QUIRE_TRY_STATUS(tokens_.expect_op(")"));
    return inner;
  }
  if (tokens_.is_op("[")) {
    return list();
  }
  if (tokens_.is_op("{")) {
    return dict();
  }
  return tokens_.fail_expected("an expression");
}

Result<ExprPtr> ExpressionParser::name() {
  Expr out = node(ExprKind::kConstant);
  const std::string& text = tokens_.take().text;
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    out.constant = Value::boolean(text == "true" || text == "True");
  } else if (text != "none" && text != "None") {
    out.kind = ExprKind::kName;
    out.name = text;
    out.symbol = symbols_.intern(text);
    for (auto& use : special_uses_) {
      use.caller = use.caller || out.symbol == kCallerSymbol;
      use.varargs = use.varargs || out.symbol == kVarargsSymbol;
      use.kwargs = use.kwargs || out.symbol == kKwargsSymbol;
    }
  }
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::number() {
  Expr out = node(ExprKind::kConstant);
  if (tokens_.is(TokenKind::kFloat)) {
    const auto value = parse_real(tokens_.take().text);
    out.constant = Value::real(value.value_or(0.0));
    return finish(std::move(out));
  }
  const auto parsed = parse_integer(tokens_.current().text, 0);
  const auto value = parsed.ok() ? *parsed : std::nullopt;
  if (!value) {
    return tokens_.fail("the integer ", tokens_.current().text, " is beyond 64 bits");
  }
  tokens_.take();
  out.constant = Value::integer(*value);
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::list() {
  Expr out = node(ExprKind::kList);
  QUIRE_TRY_STATUS(tokens_.expect_op("["));
  while (!tokens_.is_op("]")) {
    QUIRE_TRY(auto item, expression());
    out.operands.push_back(std::move(item));
    if (!tokens_.skip_op(",")) {
      break;
    }
  }
  QUIRE_TRY_STATUS(tokens_.expect_op("]"));
  return finish(std::move(out));
}

Result<ExprPtr> ExpressionParser::dict() {
  Expr out = node(ExprKind::kDict);
  QUIRE_TRY_STATUS(tokens_.expect_op("{"));
  while (!tokens_.is_op("}")) {
    QUIRE_TRY(auto key, expression());
    QUIRE_TRY_STATUS(tokens_.expect_op(":"));
    QUIRE_TRY(auto value, expression());
    out.operands.push_back(std::move(key));
    out.operands.push_back(std::move(value));
    if (!tokens_.skip_op(",")) {
      break;
    }
  }
  QUIRE_TRY_STATUS(tokens_.expect_op("}"));
  return finish(std::move(out));
}

}  // namespace quire::text::jinja
