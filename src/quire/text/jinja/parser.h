// Tokens to the tree of a template: what chat templates use of jinja2 3.1's grammar.
#pragma once

#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/ast.h"

namespace quire::text::jinja {

// Parses a template. kInvalidArgument with line and what was expected; kUnsupported with line and
// the name of a tag, filter or test that is not supported.
Result<Template> parse_template(std::string_view source);

}  // namespace quire::text::jinja
