// Methods of strings, lists, tuples and dicts.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// The bound method `name` of `value`; nullopt when Python's type has no such attribute; an
// undefined value when the sandbox forbids it (list.append); kUnsupported when Python has it and
// this subset has not.
[[nodiscard]] Result<std::optional<Value>> find_method(Meter& meter, const Value& value,
                                                       std::string_view name);

// One method: called with the value that it is bound to.
struct Method {
  std::string_view name;
  Result<Value> (*call)(Runtime&, const Value&, const Arguments&);
  bool on_markup = false;  // also right for strings made by |safe
};

[[nodiscard]] std::span<const Method> string_methods();

}  // namespace quire::text::jinja
