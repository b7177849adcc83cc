#include "usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foreign.h"
#include "nearest.h"

namespace quire::cli {
namespace {

std::string in_double_quotes(const std::string& word) { return "\"" + word + "\""; }

// Returns `app`, the command that was named, and the one below it.
std::vector<const CLI::App*> named_commands(const CLI::App& app) {
  std::vector<const CLI::App*> chain = {&app};
  while (!chain.back()->get_subcommands().empty()) {
    chain.push_back(chain.back()->get_subcommands().front());
  }
  return chain;
}

bool is_of_chat(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return parent != nullptr && parent->get_name() == kChatName;
}

// Returns a path such as "quire chunk add" or "/add".
std::string path_of(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  const std::string before = parent == nullptr ? "" : path_of(*parent);
  const bool apart = !before.empty() && !is_of_chat(command);
  return before + (apart ? " " : "") + command.get_name();
}

// Returns "ID..." or "--off"; an option with a value as a chat takes it too: "name=NAME"
std::string word_of(const CLI::Option& option) {
  if (option.get_positional()) {
    return option.get_name(true) + (option.get_items_expected_max() > 1 ? "..." : "");
  }
  const std::string name = option.get_lnames().front();
  return option.get_items_expected_max() > 0 ? name + "=" + option.get_option_text() : "--" + name;
}

std::string help_hint(const CLI::App& command) {
  return is_of_chat(command) ? "; see /help " + command.get_name()
                             : "; see " + path_of(command) + " --help";
}

std::vector<std::string> option_names(const std::vector<const CLI::App*>& chain) {
  std::vector<std::string> names;
  for (const CLI::App* const app : chain) {
    for (const CLI::Option* const option : app->get_options({})) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
  }
  return names;
}

// Returns the option as it was written, without a value behind it: "--temp" of "--temp=0", "-n" of
// "-n8".
std::string option_word(const std::string& written) {
  const std::string word = written.substr(0, written.find('='));
  const bool is_short = word.size() > 2 && word[1] != '-';
  const bool has_number = is_short && std::ranges::all_of(word.substr(2), [](unsigned char c) {
                            return std::isdigit(c) != 0;
                          });
  return has_number ? word.substr(0, 2) : word;
}

// Returns what there is for an option that is none here, with how the command is written.
std::string foreign_advice(std::string_view here, const std::string& written) {
  const std::string_view wanted = here == kPromptAlone ? "PROMPT" : "MODEL";
  const bool alone = here == kModelAlone || here == kPromptAlone;
  if (alone && written.find(wanted) == std::string::npos) {
    return std::string(kAnswers);
  }
  return std::string(here) + (alone ? ": " + written : "");
}

std::string unknown_option(const std::vector<const CLI::App*>& chain, const std::string& written) {
  const std::string word = option_word(written);
  const CLI::App& command = *chain.back();
  const std::string said = "unknown option " + in_double_quotes(word);
  if (word.find_first_of(" \t\n") != std::string::npos) {
    return said + "; a text that begins with - goes behind --" + help_hint(command);
  }
  const std::vector<std::string> names = option_names(chain);
  const std::string_view here = foreign_option(word, names);
  const std::string_view option = here.substr(0, here.find(' '));
  if (here.starts_with("--") && std::ranges::find(names, option) != names.end()) {
    return said + "; here it is " + std::string(here) + help_hint(command);
  }
  if (!here.empty() && !here.starts_with("--")) {
    return said + "; " + foreign_advice(here, synopsis(command)) + help_hint(command);
  }
  const std::string right = nearest(word, names);
  return said + (right.empty() ? "" : "; did you mean " + right + "?") + help_hint(command);
}

constexpr std::string_view kOptionsEnd = "--";

bool is_option(const std::string& word) {
  return word.size() > 1 && word.front() == '-' && word != kOptionsEnd;
}

// Returns CLI11's message in our words: lower case, and plain where it speaks of its own types.
std::string in_plain_words(const CLI::App& command, const std::string& said) {
  constexpr std::string_view kNoNumber = "Could not convert: ";
  const std::size_t equals = said.find(" = ");
  if (said.starts_with(kNoNumber) && equals != std::string::npos) {
    return said.substr(kNoNumber.size(), equals - kNoNumber.size()) + ": " +
           in_double_quotes(said.substr(equals + 3)) + " does not fit";
  }
  const std::size_t colon = said.find(": ");
  if (said.ends_with(" missing") && colon != std::string::npos) {
    return said.substr(0, colon) + " wants a value";
  }
  if (said.find("At Most 1 required") != std::string::npos && colon != std::string::npos) {
    return said.substr(0, colon) + " is given more than once";
  }
  std::string message = said;
  if (message.size() > 1 && std::islower(static_cast<unsigned char>(message[1])) != 0) {
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
  }
  return message + (said.ends_with(" is required") ? ": " + synopsis(command) : "");
}

std::string names_of_commands(const CLI::App& app, std::string_view between) {
  std::string names;
  for (const CLI::App* const command : app.get_subcommands({})) {
    names += std::string(names.empty() ? "" : between) + command->get_name();
  }
  return names;
}

}  // namespace

std::string synopsis(const CLI::App& command) {
  const bool names_options = is_of_chat(command);  // they are few
  std::string text = path_of(command) + (names_options ? "" : " [OPTIONS]");
  for (const CLI::Option* const option : command.get_options({})) {
    if (option->get_positional() || (names_options && option != command.get_help_ptr())) {
      const std::string word = word_of(*option);
      text += option->get_required() ? " " + word : " [" + word + "]";
    }
  }
  return text;
}

std::string help_text(const CLI::App& command) {
  const auto formatter = command.get_formatter();
  const bool below = command.get_parent() != nullptr;
  const auto mode = below ? CLI::AppFormatMode::All : CLI::AppFormatMode::Normal;
  std::string text = formatter->make_help(&command, path_of(command), mode);
  // Options of a command hold for those below it.
  for (const CLI::App* above = command.get_parent();
       above != nullptr && above->get_parent() != nullptr; above = above->get_parent()) {
    const CLI::Formatter groups;
    text += groups.make_groups(above, CLI::AppFormatMode::Sub);
  }
  return text;
}

std::string help_of(const CLI::App& app) { return help_text(*named_commands(app).back()); }

std::string unknown_command(const CLI::App& app, const std::string& word) {
  const bool is_chat = app.get_name() == kChatName;
  const std::string slash = is_chat ? kChatName : "";
  std::string said = "unknown command " + in_double_quotes(slash + word);
  std::vector<std::string> names;
  for (const CLI::App* const command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  const bool is_program = app.get_name() == kProgram;  // in a script are other commands
  const std::string here = is_program ? foreign_command(word) : "";
  const std::string same(is_program ? "" : same_command(word));
  const bool has_same = std::ranges::find(names, same) != names.end();
  const std::string right = has_same ? same : nearest(in_lower_case(word), names);
  if (!here.empty()) {
    said += "; " + here;
  } else if (!right.empty()) {
    said += "; did you mean " + slash + right + "?";
  }
  if (is_chat) {
    return said + (right.empty() ? "; " : " ") + "/help lists them";
  }
  return said + "; there are " + names_of_commands(app, ", ");
}

std::string unknown_word(const CLI::App& app) {
  const CLI::App& command = *named_commands(app).back();
  const std::vector<std::string> rest = command.remaining();
  const auto word = std::ranges::find_if_not(rest, &is_option);
  const bool wanted = !command.get_subcommands({}).empty();
  return wanted && word != rest.end() ? unknown_command(command, *word) : "";
}

std::string unknown_help(const CLI::App& app, std::span<const char* const> written) {
  constexpr std::string_view kHelp = "-h";
  for (const std::string word : written) {
    if (word == kOptionsEnd) {
      break;
    }
    if (word.starts_with(kHelp) && word != kHelp) {
      return unknown_option(named_commands(app), word);
    }
  }
  return "";
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<const CLI::App*> chain = named_commands(app);
  const CLI::App& command = *chain.back();
  std::vector<std::string> words;
  for (const CLI::App* const each : chain) {
    for (const std::string& word : each->remaining()) {
      if (is_option(word)) {
        return unknown_option(chain, word);
      }
      if (word != kOptionsEnd) {
        words.push_back(word);
      }
    }
  }
  if (!command.get_subcommands({}).empty()) {
    if (!words.empty()) {
      return unknown_command(command, words.front());
    }
    const bool is_root = command.get_parent() == nullptr;
    return is_root
               ? "no command; there are " + names_of_commands(command, ", ") + help_hint(command)
               : command.get_name() + " wants " + names_of_commands(command, "|") +
                     help_hint(command);
  }
  if (!words.empty()) {
    const bool takes_words = std::ranges::any_of(
        command.get_options({}), [](const auto* option) { return option->get_positional(); });
    return in_double_quotes(words.front()) + " is one argument too many: " + synopsis(command) +
           (takes_words ? "; a text of several words stands in quotes" : "") + help_hint(command);
  }
  return in_plain_words(command, error.what()) + help_hint(command);
}

}  // namespace quire::cli
