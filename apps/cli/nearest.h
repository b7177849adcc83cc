// Suggests the right word for a wrong one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

// Returns `text` with lower ASCII letters.
[[nodiscard]] std::string in_lower_case(std::string_view text);

// Returns the one of `names` that `word` probably means. It is the nearest by letters left out,
// added, changed or swapped, else one that begins with the word. "" if none is near.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& names);

}  // namespace quire::cli
