#include "quire/text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
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
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

using EndNames = std::initializer_list<std::string_view>;

// Names that tags set: targets of loops and of `set`, names of macros, parameters.
class AssignedNames {
 public:
  AssignedNames(TokenStream& tokens, NameTracker& names, ExpressionParser& expressions)
      : tokens_(tokens), names_(names), expressions_(expressions) {}

  // Takes a name that may be set.
  Result<std::string> name() {
    constexpr std::array<std::string_view, 6> kConstants = {"true",  "True", "false",
                                                            "False", "none", "None"};
    if (tokens_.is_op("(")) {
      return tokens_.refuse("a tuple in parentheses to assign to");
    }
    const std::string name = tokens_.current().text;
    QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kName, "a name"));
    if (std::ranges::find(kConstants, name) != kConstants.end()) {
      return tokens_.fail("cannot assign to ", name);
    }
    return name;
  }

  // Takes names with commas between them; with `attributes`, also those of namespaces.
  Result<std::vector<Target>> targets(bool attributes) {
    std::vector<Target> out;
    do {
      Target target;
      QUIRE_TRY(target.name, name());
      if (attributes && tokens_.skip_op(".")) {
        names_.look_up(target.name);
        target.attribute = tokens_.current().text;
        QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kName, "the name of an attribute"));
      }
      out.push_back(std::move(target));
    } while (tokens_.skip_op(","));
    return out;
  }

  // Takes the parameters of a macro or call block, which count as set from here on.
  Result<std::vector<Parameter>> signature() {
    std::vector<Parameter> out;
    QUIRE_TRY_STATUS(tokens_.expect_op("("));
    while (!tokens_.skip_op(")")) {
      if (!out.empty()) {
        QUIRE_TRY_STATUS(tokens_.expect_op(","));
      }
      Parameter parameter;
      QUIRE_TRY(parameter.name, name());
      if (tokens_.skip_op("=")) {
        QUIRE_TRY(parameter.fallback, expressions_.expression());
      } else if (!out.empty() && out.back().fallback != nullptr) {
        return tokens_.fail("a parameter without a default follows one with a default");
      }
      names_.assign(parameter.name);
      out.push_back(std::move(parameter));
    }
    return out;
  }

  // Counts the names of `targets` as set.
  void assign(const std::vector<Target>& targets) {
    for (const Target& target : targets) {
      if (target.attribute.empty()) {
        names_.assign(target.name);
      }
    }
  }

 private:
  TokenStream& tokens_;
  NameTracker& names_;
  ExpressionParser& expressions_;
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)),
        expressions_(tokens_, names_),
        assigned_(tokens_, names_, expressions_) {}

  Result<Template> run() {
    Template out;
    QUIRE_TRY(out.body, statements({}));
    QUIRE_TRY_STATUS(expressions_.report_unknown());
    out.variables = names_.looked_up();
    return out;
  }

 private:
  // Parses statements up to a tag with one of `ends`, whose name becomes the current token. Parses
  // up to the end of the template when there are none.
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

  // Parses the body of a tag up to one of `ends`. Names that it assigns are forgotten: it may not
  // run.
  Result<Body> body(EndNames ends) {
    const std::size_t mark = names_.mark();
    QUIRE_TRY_STATUS(tokens_.expect(TokenKind::kBlockEnd, "'%}'"));
    QUIRE_TRY(auto out, statements(ends));
    names_.forget(mark);
    return out;
  }

  // Parses a body that a loop outside of it cannot be left from, and the name of its end.
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
      Stmt branch{.kind = StmtKind::kBranch, .line = tokens_.current().line};
      QUIRE_TRY(branch.expr, expressions_.tuple(false));
      QUIRE_TRY(branch.body, body({"elif", "else", "endif"}));
      out.body.push_back(std::move(branch));
    } while (tokens_.skip_name("elif"));
    Stmt otherwise{.kind = StmtKind::kBranch, .line = tokens_.current().line};
    QUIRE_TRY(otherwise.body, else_body("endif"));
    out.body.push_back(std::move(otherwise));
    expressions_.forgive_unknown(unknown);
    return {};
  }

  // Parses the body behind `else`, if there is one, and the name of the end.
  Result<Body> else_body(std::string_view end) {
    QUIRE_TRY(auto out, tokens_.skip_name("else") ? body({end}) : Body());
    tokens_.take();
    return out;
  }

  Status for_tag(Stmt& out) {
    QUIRE_TRY(out.targets, assigned_.targets(false));
    if (std::ranges::any_of(out.targets, [](auto& target) { return target.name == "loop"; })) {
      return tokens_.fail("cannot assign to the special variable 'loop' in a for loop");
    }
    if (!tokens_.skip_name("in")) {
      return tokens_.fail_expected("'in'");
    }
    QUIRE_TRY(out.expr, expressions_.tuple(false));
    const std::size_t mark = names_.mark();
    assigned_.assign(out.targets);
    if (tokens_.skip_name("if")) {
      QUIRE_TRY(out.condition, expressions_.expression());
    }
    if (tokens_.is_name("recursive")) {
      return tokens_.refuse("a recursive loop");
    }
    names_.assign("loop");
    ++loops_;
    QUIRE_TRY(out.body, body({"endfor", "else"}));
    --loops_;
    names_.forget(mark);
    QUIRE_TRY(out.orelse, else_body("endfor"));
    return {};
  }

  Status jump_tag(Stmt& /*out*/) {
    return loops_ == 0 ? Status(tokens_.fail("'break' or 'continue' outside of a loop")) : Status();
  }

  Status set_tag(Stmt& out) {
    QUIRE_TRY(out.targets, assigned_.targets(true));
    if (tokens_.skip_op("=")) {
      QUIRE_TRY(out.expr, expressions_.tuple());
    } else if (tokens_.is_op("|")) {
      return tokens_.refuse("a filter of a {% set %} block");
    } else {
      out.kind = StmtKind::kSetBlock;
      QUIRE_TRY(out.body, closed_body("endset"));
    }
    assigned_.assign(out.targets);
    return {};
  }

  Status macro_tag(Stmt& out) {
    QUIRE_TRY(auto name, assigned_.name());
    names_.assign(name);
    out.targets.push_back({.name = std::move(name), .attribute = {}});
    const std::size_t mark = names_.mark();
    names_.assign("caller");
    QUIRE_TRY(out.parameters, assigned_.signature());
    QUIRE_TRY_STATUS(macro_body(out, "endmacro"));
    names_.forget(mark);
    return {};
  }

  Status macro_body(Stmt& out, std::string_view end) {
    const int lookups = names_.num_caller_lookups();
    QUIRE_TRY(out.body, closed_body(end));
    out.takes_caller = names_.num_caller_lookups() != lookups;
    return {};
  }

  Status call_tag(Stmt& out) {
    const std::size_t mark = names_.mark();
    if (tokens_.is_op("(")) {
      QUIRE_TRY(out.parameters, assigned_.signature());
    }
    QUIRE_TRY(out.expr, expressions_.expression());
    if (out.expr->kind != ExprKind::kCall) {
      return tokens_.fail("a call block needs a call");
    }
    QUIRE_TRY_STATUS(macro_body(out, "endcall"));
    names_.forget(mark);
    return {};
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

  NameTracker names_;
  TokenStream tokens_;
  ExpressionParser expressions_;
  AssignedNames assigned_;
  int loops_ = 0;  // around the current tag, within its macro
};

std::vector<std::string> words_of(const std::vector<Token>& tokens) {
  std::vector<std::string> words;
  for (const Token& token : tokens) {
    if (token.kind == TokenKind::kName || token.kind == TokenKind::kString) {
      words.push_back(token.text);
    }
  }
  std::ranges::sort(words);
  words.erase(std::ranges::unique(words).begin(), words.end());
  return words;
}

}  // namespace

Result<Template> parse_template(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return invalid("the template has ", source.size(), " bytes, at most ", kMaxTemplateBytes,
                   " are read");
  }
  QUIRE_TRY(auto tokens, tokenize(source));
  std::vector<std::string> words = words_of(tokens);
  QUIRE_TRY(Template out, Parser(std::move(tokens)).run());
  out.words = std::move(words);
  return out;
}

}  // namespace quire::text::jinja
