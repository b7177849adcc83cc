// Tools of a chat: what the body says of them.
#pragma once

#include <span>
#include <string>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"

namespace quire::server {

// Returns the rules of `tools`, `tool_choice` and `parallel_tool_calls`.
[[nodiscard]] std::span<const FieldRule> tool_rules();

// Sets the template's variable `tools`, and returns its JSON. Returns "" and sets nothing where the
// body has no tools, or chooses none.
// Errors: 400 for a choice that would constrain the answer.
[[nodiscard]] Checked<std::string> read_tools(const Members& members, json::object& variables);

}  // namespace quire::server
