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
#include "quire/text/jinja/text.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

using EndNames = std::initializer_list<std::string_view>;
using Body = std::vector<Stmt>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(tokens_, symbols_) {}

  Result<Template> run() {
    Template out;
    QUIRE_TRY(out.body, statements({}));
    QUIRE_TRY_STATUS(expressions_.report_unknown());
    out.variables = symbols_.looked_up();
    out.symbols = std::move(symbols_).take_names();
    return out;
  }

 private:
  // Statements up to a tag with one of `ends`, whose name becomes the current token; up to the end
  // of the template when there are none.
  Result<Body> statements(EndNames ends) {
    QUIRE_TRY_STATUS(tokens_.enter());
    Body out;
    while (!tokens_.is(TokenKind::kEnd)) {
      if (!tokens_.is(TokenKind::kBlockBegin)) {
        QUIRE_TRY(auto parsed, text_or_print());
        out.push_back(std::move(parsed));
        continue;
      }
      tokens_.take();
      if (std::ranges::any_of(ends, [&](auto end) { return tokens_.is_name(end); })) {
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

  // The body of a tag up to one of `ends`. What it assigns is forgotten: it may not run.
  Result<Body> body(EndNames ends) {
    const std::size_t mark = symbols_.mark();
    QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kBlockEnd, "'%}'"));
    QUIRE_TRY(auto out, statements(ends));
    symbols_.forget(mark);
    return out;
  }

  // A body that a loop outside of it cannot be left from, and the name of its end.
  Result<Body> closed_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    QUIRE_TRY(auto out, body({end}));
    loops_ = loops;
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
    struct Tag {
      std::string_view name;
      StmtKind kind;
      Status (Parser::*parse)(Stmt&);
    };
    constexpr Tag kTags[] = {{"if", StmtKind::kIf, &Parser::if_tag},
                             {"for", StmtKind::kFor, &Parser::for_tag},
                             {"set", StmtKind::kSet, &Parser::set_tag},
                             {"macro", StmtKind::kMacro, &Parser::macro_tag},
                             {"call", StmtKind::kCallBlock, &Parser::call_tag},
                             {"filter", StmtKind::kFilterBlock, &Parser::filter_tag},
                             {"generation", StmtKind::kFilterBlock, &Parser::generation_tag},
                             {"break", StmtKind::kBreak, &Parser::jump_tag},
                             {"continue", StmtKind::kContinue, &Parser::jump_tag}};
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.fail_expected("the name of a tag");
    }
    const auto* const found = std::ranges::find(kTags, tokens_.current().text, &Tag::name);
    if (found == std::end(kTags)) {
      return tokens_.refuse("tag ", base::quoted(tokens_.current().text));
    }
    Stmt out{.kind = found->kind, .line = tokens_.current().line};
    tokens_.take();
    QUIRE_TRY_STATUS((this->*found->parse)(out));
    return out;
  }

  Status if_tag(Stmt& out) {
    const std::size_t unknown = expressions_.mark_unknown();
    do {
      Branch branch;
      QUIRE_TRY(branch.condition, expressions_.tuple(false));
      QUIRE_TRY(branch.body, body({"elif", "else", "endif"}));
      out.branches.push_back(std::move(branch));
    } while (tokens_.skip_name("elif"));
    QUIRE_TRY(out.orelse, else_body("endif"));
    expressions_.forgive_unknown(unknown);
    return {};
  }

  // The body behind `else`, if there is one, and the name of the end.
  Result<Body> else_body(std::string_view end) {
    Body out;
    if (tokens_.skip_name("else")) {
      QUIRE_TRY(out, body({end}));
    }
    tokens_.take();
    return out;
  }

  Status for_tag(Stmt& out) {
    QUIRE_TRY(out.targets, targets(false));
    if (std::ranges::any_of(out.targets, [](auto& each) { return each.symbol == kLoopSymbol; })) {
      return tokens_.fail("cannot assign to the special variable 'loop' in a for loop");
    }
    if (!tokens_.skip_name("in")) {
      return tokens_.fail_expected("'in'");
    }
    QUIRE_TRY(out.expr, expressions_.tuple(false));
    const std::size_t mark = symbols_.mark();
    assign(out.targets);
    if (tokens_.skip_name("if")) {
      QUIRE_TRY(out.condition, expressions_.expression());
    }
    if (tokens_.is_name("recursive")) {
      return tokens_.refuse("a recursive loop");
    }
    symbols_.assign(kLoopSymbol);
    ++loops_;
    QUIRE_TRY(out.body, body({"endfor", "else"}));
    --loops_;
    symbols_.forget(mark);
    QUIRE_TRY(out.orelse, else_body("endfor"));
    return {};
  }

  Status jump_tag(Stmt& /*out*/) {
    return loops_ == 0 ? Status(tokens_.fail("'break' or 'continue' outside of a loop")) : Status();
  }

  Status set_tag(Stmt& out) {
    QUIRE_TRY(out.targets, targets(true));
    if (tokens_.skip_op("=")) {
      QUIRE_TRY(out.expr, expressions_.tuple());
    } else if (tokens_.is_op("|")) {
      return tokens_.refuse("a filter of a {% set %} block");
    } else {
      out.kind = StmtKind::kSetBlock;
      QUIRE_TRY(out.body, closed_body("endset"));
    }
    assign(out.targets);
    return {};
  }

  Status macro_tag(Stmt& out) {
    QUIRE_TRY(auto target, name_target());
    Macro macro{.name = name_of_last_target_};
    out.targets.push_back(std::move(target));
    assign(out.targets);
    return macro_body(out, std::move(macro), "endmacro");
  }

  Status call_tag(Stmt& out) {
    const std::size_t mark = symbols_.mark();
    Macro macro;
    if (tokens_.is_op("(")) {
      QUIRE_TRY(macro.parameters, signature());
    }
    QUIRE_TRY(out.expr, expressions_.expression());
    if (out.expr->kind != ExprKind::kCall) {
      return tokens_.fail("a call block needs a call");
    }
    QUIRE_TRY(macro.body, closed_body("endcall"));
    symbols_.forget(mark);
    out.macro = std::make_unique<const Macro>(std::move(macro));
    return {};
  }

  Status macro_body(Stmt& out, Macro macro, std::string_view end) {
    const std::size_t mark = symbols_.mark();
    QUIRE_TRY(macro.parameters, signature());
    symbols_.assign(kCallerSymbol);
    QUIRE_TRY(macro.body, closed_body(end));
    symbols_.forget(mark);
    out.macro = std::make_unique<const Macro>(std::move(macro));
    return {};
  }

  Result<std::vector<Parameter>> signature() {
    std::vector<Parameter> out;
    QUIRE_TRY_STATUS(tokens_.expect_op("("));
    while (!tokens_.skip_op(")")) {
      if (!out.empty()) {
        QUIRE_TRY_STATUS(tokens_.expect_op(","));
      }
      QUIRE_TRY(const auto named, name_target());
      Parameter parameter{.symbol = named.symbol, .name = name_of_last_target_, .fallback = {}};
      if (tokens_.skip_op("=")) {
        QUIRE_TRY(parameter.fallback, expressions_.expression());
      } else if (!out.empty() && out.back().fallback != nullptr) {
        return tokens_.fail("a parameter without a default follows one with a default");
      }
      symbols_.assign(parameter.symbol);
      out.push_back(std::move(parameter));
    }
    return out;
  }

  Status filter_tag(Stmt& out) {
    QUIRE_TRY(out.expr, expressions_.filters(nullptr));
    QUIRE_TRY(out.body, closed_body("endfilter"));
    return {};
  }

  // Marks what the model generates; for rendering only a scope.
  Status generation_tag(Stmt& out) {
    QUIRE_TRY(out.body, closed_body("endgeneration"));
    return {};
  }

  // A single name.
  Result<Target> name_target() {
    constexpr std::array<std::string_view, 6> kConstants = {"true",  "True", "false",
                                                            "False", "none", "None"};
    if (!tokens_.is(TokenKind::kName)) {
      return tokens_.is_op("(") ? tokens_.refuse("a tuple in parentheses to assign to")
                                : tokens_.fail_expected("a name");
    }
    if (std::ranges::find(kConstants, tokens_.current().text) != kConstants.end()) {
      return tokens_.fail("cannot assign to ", tokens_.current().text);
    }
    name_of_last_target_ = tokens_.take().text;
    return Target{.symbol = symbols_.intern(name_of_last_target_), .attribute = {}};
  }

  // Names with commas between them; with `attributes`, also those of namespaces.
  Result<Targets> targets(bool attributes) {
    Targets out;
    do {
      QUIRE_TRY(auto item, name_target());
      if (attributes && tokens_.skip_op(".")) {
        if (!tokens_.is(TokenKind::kName)) {
          return tokens_.fail_expected("the name of an attribute");
        }
        symbols_.look_up(item.symbol);
        item.attribute = tokens_.take().text;
      }
      out.push_back(std::move(item));
    } while (tokens_.skip_op(","));
    return out;
  }

  void assign(const Targets& targets) {
    for (const Target& target : targets) {
      if (target.attribute.empty()) {
        symbols_.assign(target.symbol);
      }
    }
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
