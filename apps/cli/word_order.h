// Options that stand before the name of the command that has them.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

// Returns the words of a command line with each option behind the name of its command: "chunk add
// --type query" for "--type query chunk add". Words behind an unknown option stay as they are.
[[nodiscard]] std::vector<std::string> in_order(const CLI::App& app,
                                                const std::vector<std::string>& words);

}  // namespace quire::cli
