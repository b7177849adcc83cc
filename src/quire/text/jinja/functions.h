// The global functions of chat templates.
#pragma once

#include <span>

#include "quire/text/jinja/builtin.h"

namespace quire::text::jinja {

// Returns namespace, raise_exception, range and strftime_now.
[[nodiscard]] std::span<const Builtin> global_functions();

}  // namespace quire::text::jinja
