// What follows an operand: attributes, subscripts, calls, filters and tests.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/expression_parser.h"
#include "quire/text/jinja/filters.h"
#include "quire/text/jinja/lexer.h"

namespace quire::text::jinja {

Result<ExprPtr> ExpressionParser::postfix(ExprPtr operand) {
  for (;;) {
    if (tokens_.is_op(".") || tokens_.is_op("[")) {
      QUIRE_TRY(operand, subscript(std::move(operand)));
    } else if (tokens_.is_op("(")) {
      QUIRE_TRY(operand, call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::postfix_filters(ExprPtr operand) {
  for (;;) {
    if (tokens_.is_op("|")) {
      QUIRE_TRY(operand, filters(std::move(operand), false));
    } else if (tokens_.is_name("is")) {
      QUIRE_TRY(operand, test(std::move(operand)));
    } else if (tokens_.is_op("(")) {
      QUIRE_TRY(operand, call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::subscript(ExprPtr operand) {
  Expr out = node(ExprKind::kAttribute);
  if (tokens_.skip_op(".")) {
    if (tokens_.is(TokenKind::kInteger)) {
      QUIRE_TRY(auto index, number());
      out.kind = ExprKind::kItem;
      out.operands.push_back(std::move(operand));
      out.operands.push_back(std::move(index));
      return finish(std::move(out));
    }
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.fail_expected("a name or number");
    }
    out.name = tokens_.take().text;
    out.operands.push_back(std::move(operand));
    return finish(std::move(out));
  }
  QUIRE_TRY_STATUS(tokens_.expect_op("["));
  bool is_slice = false;
  QUIRE_TRY(out.operands, subscript_parts(std::move(operand), is_slice));
  out.kind = is_slice ? ExprKind::kSlice : ExprKind::kItem;
  QUIRE_TRY_STATUS(tokens_.expect_op("]"));
  return finish(std::move(out));
}

// The operand with the key, or with the three parts of a slice.
Result<std::vector<ExprPtr>> ExpressionParser::subscript_parts(ExprPtr operand, bool& is_slice) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(operand));
  for (int part = 0; part < 3; ++part) {
    ExprPtr value;
    if (!tokens_.is_op(":") && !tokens_.is_op("]")) {
      QUIRE_TRY(value, expression());
    }
    parts.push_back(std::move(value));
    if (part == 2 || !tokens_.skip_op(":")) {
      break;
    }
    is_slice = true;
  }
  if (tokens_.is_op(",")) {
    return Error(unsupported("template line ", tokens_.current().line,
                             ": subscripts with several parts are not supported"));
  }
  if (is_slice) {
    parts.resize(4);
  } else if (parts[1] == nullptr) {
    return tokens_.fail_expected("an expression");
  }
  return parts;
}

Status ExpressionParser::argument(ArgumentExprs& arguments) {
  const bool spread = tokens_.is_op("*");
  const bool spread_named = tokens_.is_op("**");
  if (spread || spread_named) {
    tokens_.take();
    if (arguments.spread_named != nullptr || (spread && arguments.spread != nullptr)) {
      return tokens_.fail("invalid syntax for function call expression");
    }
    QUIRE_TRY((spread ? arguments.spread : arguments.spread_named), expression());
    return {};
  }
  const bool named = tokens_.is(TokenKind::kName) && tokens_.ahead().kind == TokenKind::kOperator &&
                     tokens_.ahead().text == "=";
  const bool after_spread = arguments.spread_named != nullptr;
  if (after_spread || (!named && (arguments.spread != nullptr || !arguments.named.empty()))) {
    return tokens_.fail("invalid syntax for function call expression");
  }
  if (!named) {
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

Result<std::string> ExpressionParser::dotted_name() {
  std::string name;
  do {
    name += name.empty() ? "" : ".";
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.fail_expected("a name");
    }
    name += tokens_.take().text;
  } while (tokens_.skip_op("."));
  return name;
}

Result<ExprPtr> ExpressionParser::filters(ExprPtr input, bool starts_with_name) {
  while (starts_with_name || tokens_.is_op("|")) {
    if (!starts_with_name) {
      tokens_.take();
    }
    starts_with_name = false;
    Expr out = node(ExprKind::kFilter);
    QUIRE_TRY(out.name, dotted_name());
    out.filter = find_filter(out.name);
    if (out.filter == nullptr) {
      unknown_.push_back(
          unsupported("template line ", out.line, ": filter '", out.name, "' is not supported"));
    }
    if (tokens_.is_op("(")) {
      QUIRE_TRY(out.arguments, arguments());
    }
    out.operands.push_back(std::move(input));
    QUIRE_TRY(input, finish(std::move(out)));
  }
  return input;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr operand) {
  Expr out = node(ExprKind::kTest);
  tokens_.take();
  const bool negated = tokens_.skip_name("not");
  QUIRE_TRY(out.name, dotted_name());
  out.test = find_test(out.name);
  if (out.test == nullptr) {
    unknown_.push_back(
        unsupported("template line ", out.line, ": test '", out.name, "' is not supported"));
  }
  const bool takes_operand = tokens_.is(TokenKind::kString) || tokens_.is(TokenKind::kInteger) ||
                             tokens_.is(TokenKind::kFloat) || tokens_.is_op("[") ||
                             tokens_.is_op("{") ||
                             (tokens_.is(TokenKind::kName) && !tokens_.is_name("else") &&
                              !tokens_.is_name("or") && !tokens_.is_name("and"));
  if (tokens_.is_op("(")) {
    QUIRE_TRY(out.arguments, arguments());
  } else if (takes_operand) {
    if (tokens_.is_name("is")) {
      return tokens_.fail("tests cannot be chained with 'is'");
    }
    QUIRE_TRY(auto argument, primary());
    QUIRE_TRY(argument, postfix(std::move(argument)));
    out.arguments.positional.push_back(std::move(argument));
  }
  out.operands.push_back(std::move(operand));
  const int line = out.line;
  QUIRE_TRY(auto tested, finish(std::move(out)));
  if (!negated) {
    return tested;
  }
  Expr negation{.kind = ExprKind::kNot, .line = line};
  negation.operands.push_back(std::move(tested));
  return finish(std::move(negation));
}

}  // namespace quire::text::jinja
