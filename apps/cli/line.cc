#include "line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "usage.h"

namespace quire::cli {
namespace {

// Returns the quote that nothing closes, or 0. CLI11 takes all that follows one for one word, so a
// word behind the line shows whether one is open.
char open_quote(const std::string& line) {
  const std::string sentinel = "\x01";
  const auto is_closed = [&](const std::string& end) {
    return CLI::detail::split_up(line + end + " " + sentinel).back() == sentinel;
  };
  if (is_closed("")) {
    return 0;
  }
  for (const char quote : {'"', '\'', '`'}) {
    if (is_closed(std::string(1, quote))) {
      return quote;
    }
  }
  return '"';
}

}  // namespace

Result<std::vector<std::string>> split_words(const std::string& line) {
  if (const char quote = open_quote(line); quote != 0) {
    return {ErrorCode::kInvalidArgument, std::string("the quote ") + quote + " is not closed"};
  }
  // A value in quotes stands behind "=" too.
  std::vector<std::string> words =
      CLI::detail::split_up(CLI::detail::find_and_modify(line, "=", CLI::detail::escape_detect));
  std::erase(words, std::string());
  return words;
}

Result<std::string> parse_words(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);  // CLI11 takes them in this order
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return help_of(app);
  } catch (const CLI::ParseError& error) {
    return {ErrorCode::kInvalidArgument, usage_message(app, error)};
  }
  return std::string();
}

}  // namespace quire::cli
