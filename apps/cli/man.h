// The manual page quire(1), made from the commands and options that the program has.
#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

// Returns the page in the roff macros of man(7). `app` is the program with all its commands.
[[nodiscard]] std::string man_page(const CLI::App& app);

}  // namespace quire::cli
