// A line of `quire script` or `quire chat` as CLI11 takes it.
#pragma once

#include <string>
#include <vector>

#include "quire/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

// Cuts a line into words at blanks, or as quotes say. kInvalidArgument where nothing closes a
// quote.
[[nodiscard]] Result<std::vector<std::string>> split_words(const std::string& line);

// Parses `words` as the arguments of `app`, whose callbacks say what is to be done. Returns the
// help that the words ask for, or "". kInvalidArgument in the words of usage_message.
[[nodiscard]] Result<std::string> parse_words(CLI::App& app, std::vector<std::string> words);

}  // namespace quire::cli
