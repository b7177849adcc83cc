// Cuts and parses a line of `quire script` or `quire chat` for CLI11.
#pragma once

#include <string>
#include <vector>

#include "quire/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

// Cuts a line into words at blanks, or as quotes say. kInvalidArgument where a quote stays open.
[[nodiscard]] Result<std::vector<std::string>> split_words(const std::string& line);

// Parses `words` as the arguments of `app`, whose callbacks note the command. Returns the help that
// the words ask for, or "". kInvalidArgument with the text of usage_message.
[[nodiscard]] Result<std::string> parse_words(CLI::App& app, std::vector<std::string> words);

}  // namespace quire::cli
