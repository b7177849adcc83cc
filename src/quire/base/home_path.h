// Replaces a leading "~" in a path.
#pragma once

#include <string>
#include <string_view>

namespace quire::base {

// Returns `path` with a leading "~" or "~/" made the user's home folder, as a shell does. That is
// $HOME, or for want of it what the system knows of the user. Anything else stays as it is, "~name"
// and "./~" too. No other thread may change the environment meanwhile.
[[nodiscard]] std::string home_path(std::string_view path);

}  // namespace quire::base
