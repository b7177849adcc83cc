// The right word beside a wrong one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

// Returns the one of `names` that `word` was probably meant to be: the nearest by letters left out,
// added, changed or swapped, else one that begins with the word. "" if none is near.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& names);

}  // namespace quire::cli
