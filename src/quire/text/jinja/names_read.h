// Which variables a template reads.
#pragma once

#include <string>
#include <vector>

#include "quire/text/jinja/ast.h"

namespace quire::text::jinja {

// Returns the names that some path through the template looks up among the variables that it is
// rendered with, in order of the alphabet, without the language's own functions. A name that is set
// before on every path is none of them.
[[nodiscard]] std::vector<std::string> names_read(const Template& parsed);

}  // namespace quire::text::jinja
