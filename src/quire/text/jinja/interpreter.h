// Runs a parsed template: statements write text, expressions make values.
#pragma once

#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {

// Returns the text of one rendering with the variables of `variables`. Errors are kInvalidArgument
// or kUnsupported and name the line.
Result<TextPtr> run_template(const Template& parsed, Runtime& runtime, const ScopePtr& variables);

}  // namespace quire::text::jinja
