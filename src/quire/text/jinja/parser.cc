#include "quire/text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/expression_parser.h"
#include "quire/text/jinja/lexer.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"

namespace quire::text::jinja {
namespace {

using EndNames = std::initializer_list<std::string_view>;

constexpr std::array<std::string_view, 8> kUnsupportedTags = {
    "block", "extends", "include", "import", "from", "autoescape", "print", "do"};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(tokens_, symbols_) {}

  Result<Template> run() {
    Template out;
    QUIRE_TRY(out.body, statements({}));
    QUIRE_TRY_STATUS(expressions_.report_unknown(0));
    out.symbols = std::move(symbols_).take_names();
    return out;
  }

 private:
  // Statements up to a tag with one of `ends`, whose name becomes the current token; up to the end
  // of the template when there are none.
  Result<std::vector<Stmt>> statements(EndNames ends) {
    QUIRE_TRY_STATUS(tokens_.enter());
    std::vector<Stmt> out;
    while (!tokens_.is(TokenKind::kEnd)) {
      if (!tokens_.is(TokenKind::kBlockBegin)) {
        QUIRE_TRY(auto parsed, text_or_print());
        out.push_back(std::move(parsed));
        continue;
      }
      tokens_.take();
      if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return tokens_.is_name(end); })) {
        tokens_.leave();
        return out;
      }
      QUIRE_TRY(auto parsed, tag());
      out.push_back(std::move(parsed));
      QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kBlockEnd, "'%}'"));
    }
    tokens_.leave();
    if (ends.size() != 0) {
      return tokens_.fail("unexpected end of template, expected {% ", *(ends.end() - 1), " %}");
    }
    return out;
  }

  // The body of a tag up to one of `ends`.
  Result<std::vector<Stmt>> body(EndNames ends) {
    tokens_.skip_op(":");
    QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kBlockEnd, "'%}'"));
    return statements(ends);
  }

  // The same, behind which the ending name is taken.
  Result<std::vector<Stmt>> whole_body(std::string_view end) {
    QUIRE_TRY(auto out, body({end}));
    tokens_.take();
    return out;
  }

  Result<Stmt> text_or_print() {
    Stmt out{.line = tokens_.current().line};
    if (tokens_.is(TokenKind::kData)) {
      out.text = make_text(nullptr, tokens_.take().text, kFromTemplate);
      return out;
    }
    QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kVariableBegin, "'{{'"));
    out.kind = StmtKind::kPrint;
    QUIRE_TRY(out.expr, expressions_.tuple());
    QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kVariableEnd, "'}}'"));
    return out;
  }

  Result<Stmt> tag() {
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.fail_expected("the name of a tag");
    }
    struct Tag {
      std::string_view name;
      Result<Stmt> (Parser::*parse)();
    };
    constexpr Tag kTags[] = {{"if", &Parser::if_tag},      {"for", &Parser::for_tag},
                             {"set", &Parser::set_tag},    {"macro", &Parser::macro_tag},
                             {"call", &Parser::call_tag},  {"filter", &Parser::filter_tag},
                             {"with", &Parser::with_tag},  {"generation", &Parser::generation_tag},
                             {"break", &Parser::jump_tag}, {"continue", &Parser::jump_tag}};
    for (const auto& each : kTags) {
      if (tokens_.is_name(each.name)) {
        return (this->*each.parse)();
      }
    }
    const std::string& name = tokens_.current().text;
    if (std::find(kUnsupportedTags.begin(), kUnsupportedTags.end(), name) !=
        kUnsupportedTags.end()) {
      return unsupported("template line ", tokens_.current().line, ": tag '", name,
                         "' is not supported");
    }
    return unsupported("template line ", tokens_.current().line, ": unknown tag ",
                       base::quoted(name));
  }

  Stmt begin(StmtKind kind) {
    Stmt out{.kind = kind, .line = tokens_.current().line};
    tokens_.take();
    return out;
  }

  Result<Stmt> if_tag() {
    const std::size_t unknown = expressions_.mark();
    Stmt out{.kind = StmtKind::kIf, .line = tokens_.current().line};
    do {
      tokens_.take();
      Branch branch;
      QUIRE_TRY(branch.condition, expressions_.tuple(false));
      QUIRE_TRY(branch.body, body({"elif", "else", "endif"}));
      out.branches.push_back(std::move(branch));
    } while (tokens_.is_name("elif"));
    if (tokens_.skip_name("else")) {
      QUIRE_TRY(out.orelse, body({"endif"}));
    }
    tokens_.take();
    expressions_.forgive_unknown(unknown);
    return out;
  }

  Result<Stmt> for_tag() {
    Stmt out = begin(StmtKind::kFor);
    QUIRE_TRY(out.target, target(false));
    if (assigns_loop(out.target)) {
      return tokens_.fail("cannot assign to the special variable 'loop' in a for loop");
    }
    if (!tokens_.skip_name("in")) {
      return tokens_.fail_expected("'in'");
    }
    QUIRE_TRY(out.expr, expressions_.tuple(false, "recursive"));
    const std::size_t unknown = expressions_.mark();
    if (tokens_.skip_name("if")) {
      QUIRE_TRY(out.condition, expressions_.expression());
    }
    if (tokens_.is_name("recursive")) {
      return unsupported("template line ", tokens_.current().line,
                         ": recursive loops are not supported");
    }
    ++loops_;
    QUIRE_TRY(out.body, body({"endfor", "else"}));
    --loops_;
    if (tokens_.skip_name("else")) {
      QUIRE_TRY(out.orelse, body({"endfor"}));
    }
    tokens_.take();
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  static bool assigns_loop(const Target& target) {
    return target.symbol == kLoopSymbol ||
           std::any_of(target.items.begin(), target.items.end(), assigns_loop);
  }

  Result<Stmt> jump_tag() {
    const bool is_break = tokens_.is_name("break");
    if (loops_ == 0) {
      return tokens_.fail("'", tokens_.current().text, "' outside of a loop");
    }
    return begin(is_break ? StmtKind::kBreak : StmtKind::kContinue);
  }

  Result<Stmt> set_tag() {
    Stmt out = begin(StmtKind::kSet);
    QUIRE_TRY(out.target, target(true));
    if (tokens_.skip_op("=")) {
      QUIRE_TRY(out.expr, expressions_.tuple());
      return out;
    }
    const std::size_t unknown = expressions_.mark();
    out.kind = StmtKind::kSetBlock;
    QUIRE_TRY(out.expr, expressions_.filters(nullptr, false));
    QUIRE_TRY(out.body, own_body("endset"));
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  // A body that a loop outside of it cannot be left from.
  Result<std::vector<Stmt>> function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    auto out = whole_body(end);
    loops_ = loops;
    return out;
  }

  // A body whose unknown filters count even inside of an `if` around it.
  Result<std::vector<Stmt>> own_body(std::string_view end) {
    const std::size_t unknown = expressions_.mark();
    QUIRE_TRY(auto out, whole_body(end));
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  Result<Stmt> macro_tag() {
    Stmt out = begin(StmtKind::kMacro);
    const std::size_t unknown = expressions_.mark();
    QUIRE_TRY(out.target, name_target());
    expressions_.begin_macro();
    Macro macro;
    macro.name = name_of_last_target_;
    QUIRE_TRY(macro.parameters, signature());
    QUIRE_TRY(out.macro, macro_body(std::move(macro), "endmacro"));
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  Result<Stmt> call_tag() {
    Stmt out = begin(StmtKind::kCallBlock);
    const std::size_t unknown = expressions_.mark();
    Macro macro;
    expressions_.begin_macro();
    if (tokens_.is_op("(")) {
      QUIRE_TRY(macro.parameters, signature());
    }
    QUIRE_TRY(out.expr, expressions_.expression());
    if (out.expr->kind != ExprKind::kCall) {
      return tokens_.fail("a call block needs a call");
    }
    QUIRE_TRY(out.macro, macro_body(std::move(macro), "endcall"));
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  Result<std::unique_ptr<const Macro>> macro_body(Macro macro, std::string_view end) {
    QUIRE_TRY(macro.body, function_body(end));
    const SpecialUse use = expressions_.end_macro();
    const auto declared = [&](Symbol symbol) {
      return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                         [&](const Parameter& parameter) { return parameter.symbol == symbol; });
    };
    macro.uses_caller = use.caller;
    macro.uses_varargs = use.varargs && !declared(kVarargsSymbol);
    macro.uses_kwargs = use.kwargs && !declared(kKwargsSymbol);
    for (const auto& parameter : macro.parameters) {
      if (use.caller && parameter.symbol == kCallerSymbol && parameter.fallback == nullptr) {
        return tokens_.fail("the parameter 'caller' of a macro needs a default");
      }
    }
    return std::make_unique<const Macro>(std::move(macro));
  }

  // What separates the items of a list.
  Status comma_unless(bool first) { return first ? Status() : tokens_.expect_op(","); }

  Result<std::vector<Parameter>> signature() {
    std::vector<Parameter> out;
    QUIRE_TRY_STATUS(tokens_.expect_op("("));
    while (!tokens_.is_op(")")) {
      QUIRE_TRY_STATUS(comma_unless(out.empty()));
      Parameter parameter;
      QUIRE_TRY(const auto named, name_target());
      parameter.symbol = named.symbol;
      parameter.name = name_of_last_target_;
      if (tokens_.skip_op("=")) {
        QUIRE_TRY(parameter.fallback, expressions_.expression());
      } else if (!out.empty() && out.back().fallback != nullptr) {
        return tokens_.fail("a parameter without a default follows one with a default");
      }
      out.push_back(std::move(parameter));
    }
    tokens_.take();
    return out;
  }

  Result<Stmt> filter_tag() {
    Stmt out = begin(StmtKind::kFilterBlock);
    const std::size_t unknown = expressions_.mark();
    QUIRE_TRY(out.expr, expressions_.filters(nullptr, true));
    QUIRE_TRY(out.body, own_body("endfilter"));
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  Result<Stmt> with_tag() {
    Stmt out = begin(StmtKind::kWith);
    while (!tokens_.is(TokenKind::kBlockEnd)) {
      QUIRE_TRY_STATUS(comma_unless(out.assignments.empty()));
      QUIRE_TRY(auto to, target(false));
      QUIRE_TRY_STATUS(tokens_.expect_op("="));
      QUIRE_TRY(auto value, expressions_.expression());
      out.assignments.emplace_back(std::move(to), std::move(value));
    }
    QUIRE_TRY(out.body, own_body("endwith"));
    return out;
  }

  // Marks what the model generates; for rendering only a scope.
  Result<Stmt> generation_tag() {
    Stmt out = begin(StmtKind::kScope);
    const std::size_t unknown = expressions_.mark();
    QUIRE_TRY(out.body, function_body("endgeneration"));
    QUIRE_TRY_STATUS(expressions_.report_unknown(unknown));
    return out;
  }

  // A single name.
  Result<Target> name_target() {
    Target out{.line = tokens_.current().line};
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.fail_expected("a name");
    }
    const std::string& name = tokens_.current().text;
    constexpr std::array<std::string_view, 6> kConstants = {"true",  "True", "false",
                                                            "False", "none", "None"};
    if (std::find(kConstants.begin(), kConstants.end(), name) != kConstants.end()) {
      return tokens_.fail("cannot assign to ", name);
    }
    name_of_last_target_ = name;
    out.symbol = symbols_.intern(name);
    tokens_.take();
    return out;
  }

  // One name, one attribute of a namespace, or a tuple in parentheses.
  Result<Target> target_item(bool with_namespace) {
    if (tokens_.skip_op("(")) {
      QUIRE_TRY_STATUS(tokens_.enter());
      QUIRE_TRY(auto out, target(with_namespace));
      tokens_.leave();
      QUIRE_TRY_STATUS(tokens_.expect_op(")"));
      return out;
    }
    QUIRE_TRY(auto out, name_target());
    if (with_namespace && tokens_.skip_op(".")) {
      if (!tokens_.is(TokenKind::kName)) {
        return tokens_.fail_expected("the name of an attribute");
      }
      out.attribute = tokens_.take().text;
    }
    return out;
  }

  Result<Target> target(bool with_namespace) {
    Target out{.line = tokens_.current().line};
    for (;;) {
      QUIRE_TRY(auto item, target_item(with_namespace));
      out.items.push_back(std::move(item));
      if (!tokens_.skip_op(",")) {
        break;
      }
      out.is_tuple = true;
      if (tokens_.is_name("in") || tokens_.is_op("=") || tokens_.is_op(")")) {
        break;
      }
    }
    return out.is_tuple ? std::move(out) : std::move(out.items.front());
  }

  SymbolTable symbols_;
  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current tag, within its macro
  std::string name_of_last_target_;
};

}  // namespace

Result<Template> parse_template(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return invalid("the template has ", source.size(), " bytes, at most ", kMaxTemplateBytes,
                   " are read");
  }
  QUIRE_TRY(auto tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace quire::text::jinja
