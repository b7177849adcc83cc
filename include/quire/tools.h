// Tools of the command line, for programs: version, and paths and JSON as people write them.
// diagnostics.h, which this header includes, has doctor, inspect and bench.
//
// Threads: every function here may be called from any thread. None needs an open LLM.
// Memory: where the machine refuses it, functions throw std::bad_alloc.
#pragma once

#include <string>
#include <string_view>

#include "quire/diagnostics.h"  // IWYU pragma: export
#include "quire/export.h"

namespace quire {

// Returns the version of the library that runs: "0.1.0". Static memory.
[[nodiscard]] QUIRE_API const char* version();

// Returns the path with the user's home folder for a leading "~" or "~/". Every call that takes a
// path does this by itself. "~name" stays as it is.
[[nodiscard]] QUIRE_API std::string expand_home(std::string_view path);

// Returns `text` as a JSON string in its quotes. Callers put it into the JSON that calls take:
// messages, variables, metadata. O(text).
[[nodiscard]] QUIRE_API std::string json_string(std::string_view text);

}  // namespace quire
