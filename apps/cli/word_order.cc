#include "word_order.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace quire::cli {
namespace {

// Returns the option `name` of a command below `app`, or nullptr.
const CLI::Option* option_below(const CLI::App& app, const std::string& name) {
  for (const CLI::App* const command : app.get_subcommands({})) {
    const CLI::Option* const own = command->get_option_no_throw(name);
    const CLI::Option* const found = own != nullptr ? own : option_below(*command, name);
    if (found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

const CLI::App* command_below(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands({});
  const auto found = std::ranges::find(commands, name, &CLI::App::get_name);
  return found == commands.end() ? nullptr : *found;
}

bool is_long_option(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

}  // namespace

std::vector<std::string> in_order(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  std::vector<std::string> ordered;
  std::vector<std::string> early;  // options of commands whose names come later
  std::size_t next = 0;
  while (next < words.size()) {
    const std::string& word = words[next];
    if (!is_long_option(word)) {
      const CLI::App* const below = command_below(*command, word);
      if (below == nullptr) {
        break;
      }
      command = below;
      ordered.push_back(word);
      ++next;
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    const CLI::Option* const own = command->get_option_no_throw(name);
    const CLI::Option* const option = own != nullptr ? own : option_below(*command, name);
    if (option == nullptr) {
      break;
    }
    const bool has_value = option->get_items_expected_max() > 0 && name == word;
    const std::size_t end = std::min(next + (has_value ? 2 : 1), words.size());
    std::vector<std::string>& side = own != nullptr ? ordered : early;
    side.insert(side.end(), words.begin() + static_cast<std::ptrdiff_t>(next),
                words.begin() + static_cast<std::ptrdiff_t>(end));
    next = end;
  }
  ordered.insert(ordered.end(), early.begin(), early.end());
  ordered.insert(ordered.end(), words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
  return ordered;
}

}  // namespace quire::cli
