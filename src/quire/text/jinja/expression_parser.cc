#include "quire/text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/lexer.h"
#include "quire/text/jinja/library.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/value.h"
#include "quire/text/sourced_text.h"

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

}  // namespace

struct ExpressionParser::Infix {
  std::string_view text;
  Level level;
  ExprKind kind;
  Operator op = Operator::kAdd;
};

void NameTracker::look_up(const std::string& name) {
  num_caller_lookups_ += name == "caller" ? 1 : 0;
  if (!set_.contains(name) && find_function(name) == nullptr) {
    read_.insert(name);
  }
}

void NameTracker::assign(const std::string& name) {
  if (set_.insert(name).second) {
    assigned_.push_back(name);
  }
}

void NameTracker::forget(std::size_t mark) {
  for (; assigned_.size() > mark; assigned_.pop_back()) {
    set_.erase(assigned_.back());
  }
}

Expr ExpressionParser::node(ExprKind kind, ExprPtr operand) const {
  Expr out{.kind = kind, .line = tokens_.current().line};
  if (operand != nullptr) {
    out.operands.push_back(std::move(operand));
  }
  return out;
}

Result<ExprPtr> ExpressionParser::finish(Expr node) const {
  for (const ExprPtr& child : node.operands) {
    node.height = std::max(node.height, child == nullptr ? 0 : child->height + 1);
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
    Expr out = node(ExprKind::kConditional, std::move(value));
    out.operands.resize(3);
    tokens_.take();
    QUIRE_TRY(out.operands[1], binary(kOrs));
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
    Expr out = node(infix->kind, std::move(left));
    out.op = infix->op;
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

// Parses `not` and `-` with their operand.
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
  if (tokens_.skip_op("(")) {
    QUIRE_TRY(auto inner, tuple(true, true));
    QUIRE_TRY_STATUS(tokens_.expect_op(")"));
    return inner;
  }
  return tokens_.is_op("[") || tokens_.is_op("{") ? list_or_dict() : literal();
}

Result<ExprPtr> ExpressionParser::name() {
  Expr out = node(ExprKind::kConstant);
  const std::string& text = tokens_.current().text;
  if (text == "self" || text == "varargs" || text == "kwargs") {
    return tokens_.refuse("the name '", text, "'");
  }
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    out.constant = Value::boolean(text == "true" || text == "True");
  } else if (text != "none" && text != "None") {
    out.kind = ExprKind::kName;
    out.name = text;
    names_.look_up(text);
  }
  tokens_.take();
  return finish(std::move(out));
}

// Parses strings, side by side, or a number.
Result<ExprPtr> ExpressionParser::literal() {
  Expr out = node(ExprKind::kConstant);
  std::string text = tokens_.current().text;
  std::from_chars_result parsed{};
  if (tokens_.is(TokenKind::kInteger)) {
    std::int64_t integer = 0;
    parsed = std::from_chars(text.data(), text.data() + text.size(), integer);
    out.constant = Value::integer(integer);
  } else if (tokens_.is(TokenKind::kFloat)) {
    double real = 0;
    parsed = std::from_chars(text.data(), text.data() + text.size(), real);
    out.constant = Value::real(real);
  } else if (!tokens_.is(TokenKind::kString)) {
    return tokens_.fail_expected("an expression");
  }
  if (parsed.ec != std::errc()) {
    return tokens_.fail("the number ", text, " is beyond 64 bits");
  }
  const bool is_string = tokens_.is(TokenKind::kString);
  for (tokens_.take(); is_string && tokens_.is(TokenKind::kString);) {
    text += tokens_.take().text;
  }
  if (is_string) {
    out.constant = Value::string(make_text(nullptr, text, kFromTemplate));
  }
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

// Parses attributes, subscripts and calls; then, if wanted, filters, tests and calls.
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
  Expr out = node(ExprKind::kAttribute, std::move(operand));
  tokens_.take();
  if (tokens_.is(TokenKind::kInteger)) {
    QUIRE_TRY(auto index, literal());
    out.kind = ExprKind::kItem;
    out.operands.push_back(std::move(index));
    return finish(std::move(out));
  }
  out.name = tokens_.current().text;
  QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kName, "a name or number"));
  return finish(std::move(out));
}

// Parses the key, or the three parts of a slice.
Result<ExprPtr> ExpressionParser::subscript(ExprPtr operand) {
  Expr out = node(ExprKind::kItem, std::move(operand));
  tokens_.take();
  do {
    ExprPtr part;
    if (!tokens_.is_op(":") && !tokens_.is_op("]")) {
      QUIRE_TRY(part, expression());
    }
    out.operands.push_back(std::move(part));
  } while (out.operands.size() < 4 && tokens_.skip_op(":"));
  if (out.operands.size() > 2) {
    out.kind = ExprKind::kSlice;
    out.operands.resize(4);
  } else if (out.operands[1] == nullptr) {
    return tokens_.fail_expected("an expression");
  }
  QUIRE_TRY_STATUS(tokens_.expect_op("]"));
  return finish(std::move(out));
}

// Appends the arguments, in parentheses, to the operands.
Status ExpressionParser::arguments(Expr& out) {
  QUIRE_TRY_STATUS(tokens_.expect_op("("));
  while (!tokens_.is_op(")")) {
    if (tokens_.is_op("*") || tokens_.is_op("**")) {
      return tokens_.refuse("spreading arguments with '", tokens_.current().text, "'");
    }
    if (tokens_.is(TokenKind::kName) && tokens_.ahead().kind == TokenKind::kOperator &&
        tokens_.ahead().text == "=") {
      out.named.push_back(tokens_.take().text);
      tokens_.take();
      if (std::ranges::count(out.named, out.named.back()) > 1) {
        return tokens_.fail("keyword argument repeated: ", out.named.back());
      }
    } else if (!out.named.empty()) {
      return tokens_.fail("an argument without a name follows one with a name");
    }
    QUIRE_TRY(auto value, expression());
    out.operands.push_back(std::move(value));
    if (!tokens_.skip_op(",")) {
      break;
    }
  }
  return tokens_.expect_op(")");
}

Result<ExprPtr> ExpressionParser::call(ExprPtr callee) {
  Expr out = node(ExprKind::kCall, std::move(callee));
  QUIRE_TRY_STATUS(arguments(out));
  return finish(std::move(out));
}

Status ExpressionParser::find_builtin_of(Expr& node, std::string_view kind) {
  node.name = tokens_.current().text;
  node.builtin = kind == "filter" ? find_filter(node.name) : find_test(node.name);
  if (node.builtin == nullptr) {
    unknown_.push_back(tokens_.refuse(kind, " '", node.name, "'"));
  }
  return tokens_.expect(TokenKind::kName, "a name");
}

Result<ExprPtr> ExpressionParser::filters(ExprPtr input) {
  do {
    Expr out = node(ExprKind::kFilter);
    out.operands.push_back(std::move(input));
    QUIRE_TRY_STATUS(find_builtin_of(out, "filter"));
    if (tokens_.is_op("(")) {
      QUIRE_TRY_STATUS(arguments(out));
    }
    QUIRE_TRY(input, finish(std::move(out)));
  } while (tokens_.skip_op("|"));
  return input;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr operand) {
  Expr out = node(ExprKind::kTest, std::move(operand));
  tokens_.take();
  const bool negated = tokens_.skip_name("not");
  QUIRE_TRY_STATUS(find_builtin_of(out, "test"));
  const bool word = tokens_.is(TokenKind::kName) && !tokens_.is_name("else") &&
                    !tokens_.is_name("or") && !tokens_.is_name("and");
  if (tokens_.is_op("(")) {
    QUIRE_TRY_STATUS(arguments(out));
  } else if (tokens_.is_name("is")) {
    return tokens_.fail("tests cannot be chained with 'is'");
  } else if (word || tokens_.is(TokenKind::kString) || tokens_.is(TokenKind::kInteger) ||
             tokens_.is(TokenKind::kFloat) || tokens_.is_op("[") || tokens_.is_op("{")) {
    QUIRE_TRY(auto argument, primary());
    QUIRE_TRY(argument, postfix(std::move(argument), false));
    out.operands.push_back(std::move(argument));
  }
  QUIRE_TRY(auto tested, finish(std::move(out)));
  return negated ? finish(node(ExprKind::kNot, std::move(tested)))
                 : Result<ExprPtr>(std::move(tested));
}

}  // namespace quire::text::jinja
