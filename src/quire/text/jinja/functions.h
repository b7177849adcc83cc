// The global functions of chat templates: range, dict, namespace, raise_exception, strftime_now.
#pragma once

#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

struct NamedFunction {
  std::string_view name;
  Result<Value> (*call)(Runtime&, const Arguments&);
};

// All of them; those of jinja2 that are not implemented fail with kUnsupported when called.
[[nodiscard]] std::span<const NamedFunction> global_functions();
// What the name `self` means in a template without blocks: a thing that is defined and printed.
[[nodiscard]] Callable self_reference();

}  // namespace quire::text::jinja
