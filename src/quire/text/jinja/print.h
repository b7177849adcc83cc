// Values as text: Python's str and repr, and json.dumps.
#pragma once

#include <optional>
#include <string>

#include "quire/result.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {

// Returns str(value). kUnsupported for namespaces, loops, functions, ranges, views and generators.
Result<TextPtr> to_text(Meter& meter, const Value& value);
Status append_str(Meter& meter, const Value& value, TextBuilder& out);

// Style with the meaning of the arguments of json.dumps; without `indent` everything is on one
// line.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Prints a value as JSON. kInvalidArgument for a value that JSON has no form for. Strings and keys
// keep their sources; quotes, brackets and separators are the template's.
Result<TextPtr> to_json(Meter& meter, const Value& value, const JsonStyle& style);

}  // namespace quire::text::jinja
