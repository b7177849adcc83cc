// Tokens to the tree of a template: jinja2 3.1's grammar without inheritance and imports.
#pragma once

#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"

namespace quire::text::jinja {

// Longest template, and how deep it may nest.
inline constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;
inline constexpr int kMaxNesting = 100;
inline constexpr int kMaxExpressionHeight = 200;

// kInvalidArgument with line and what was expected; kUnsupported with line and the name of a tag,
// filter or test outside the subset. As in jinja2, an unknown filter or test inside of an `if` is
// an error only when it is reached.
[[nodiscard]] Result<Template> parse_template(std::string_view source);

}  // namespace quire::text::jinja
