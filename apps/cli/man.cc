#include "man.h"

#include <CLI/CLI.hpp>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "quire/tools.h"
#include "usage.h"

namespace quire::cli {
namespace {

// Date of the last change to the text of this file.
constexpr std::string_view kDate = "2026-11-29";

// Writes text so that roff shows it as it stands.
std::string escaped(std::string_view text) {
  std::string roff;
  for (const char c : text) {
    const bool begins_line = roff.empty() || roff.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) {
      roff += "\\&";
    }
    switch (c) {
      case '\\':
        roff += "\\e";
        break;
      case '-':
        roff += "\\-";
        break;
      case '`':
        roff += "\\(ga";
        break;
      default:
        roff += c;
    }
  }
  return roff;
}

std::string bold(std::string_view text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + escaped(text) + "\\fR"; }

// Returns an argument of a macro.
std::string macro_argument(std::string_view text) {
  std::string roff = escaped(text);
  for (std::size_t at = 0; (at = roff.find('"', at)) != std::string::npos; at += 4) {
    roff.replace(at, 1, "\\(dq");
  }
  return "\"" + roff + "\"";
}

// Returns a paragraph with a tag, such as an option with its meaning.
std::string tagged(const std::string& tag, std::string_view text) {
  return ".TP\n" + tag + "\n" + escaped(text) + "\n";
}

std::string name_of_option(const CLI::Option& option) {
  return option.get_positional() ? option.get_name(true) : option.get_name(false, true);
}

std::string tagged_option(const CLI::Option& option) {
  const CLI::Formatter formatter;
  const std::string value = formatter.make_option_opts(&option);  // with a blank before it
  return tagged(bold(name_of_option(option)) + (value.empty() ? "" : " ") +
                    (value.empty() ? "" : italic(value.substr(value.find_first_not_of(' ')))),
                option.get_description().empty() ? "Argument." : option.get_description());
}

// Options that several commands share word for word, such as those of the engine.
class SharedOptions {
 public:
  explicit SharedOptions(const CLI::App& app) {
    collect(app);
    std::erase_if(counts_, [](const auto& entry) { return entry.second < 2; });
  }

  [[nodiscard]] bool contains(const CLI::Option& option) const {
    return counts_.contains(key_of(option));
  }

  // Returns a section for each group.
  [[nodiscard]] std::string sections() const {
    std::string text;
    for (const auto& [group, options] : groups_) {
      std::string entries;
      for (const CLI::Option* const option : options) {
        entries += contains(*option) ? tagged_option(*option) : "";
      }
      if (!entries.empty()) {
        text += ".SS " + macro_argument(group + " options") + "\n";
        text += entries;
      }
    }
    return text.empty() ? "" : ".SH SHARED OPTIONS\n" + text;
  }

 private:
  using Key = std::pair<std::string, std::string>;  // name and meaning

  static Key key_of(const CLI::Option& option) {
    return {option.get_group() + option.get_name(false, true), option.get_description()};
  }

  void collect(const CLI::App& app) {
    for (const CLI::Option* const option : app.get_options({})) {
      if (option->nonpositional() && option->get_group() != "Options" &&
          ++counts_[key_of(*option)] == 1) {
        groups_[option->get_group()].push_back(option);
      }
    }
    for (const CLI::App* const below : app.get_subcommands({})) {
      collect(*below);
    }
  }

  std::map<Key, int> counts_;
  std::map<std::string, std::vector<const CLI::Option*>> groups_;
};

// Returns what a command does, its own options, and the names of those that it shares.
std::string command_section(const CLI::App& command, const SharedOptions& shared) {
  std::string text = ".SS " + macro_argument(synopsis(command)) + "\n";
  text += escaped(command.get_description()) + ".\n";
  std::map<std::string, std::string> names;  // names of shared options, by group
  for (const CLI::Option* const option : command.get_options({})) {
    if (option == command.get_help_ptr()) {
      continue;
    }
    if (!shared.contains(*option)) {
      text += tagged_option(*option);
      continue;
    }
    std::string& list = names[option->get_group()];
    list += (list.empty() ? "" : ", ") + bold(option->get_name(false, true));
  }
  for (const auto& [group, list] : names) {
    text += ".PP\n" + escaped(group) + " options: " + list + ".\n";
  }
  for (const CLI::App* const below : command.get_subcommands({})) {
    text += command_section(*below, shared);
  }
  return text;
}

std::string chat_section() {
  const LineCommands commands;
  std::string text =
      ".SH COMMANDS OF A CHAT\n"
      "Lines of\n.B quire chat\nthat begin with a slash. All other lines are questions.\n";
  for (const CLI::App* const command : commands.app().get_subcommands({})) {
    const std::string more = command->get_footer();
    text += tagged(bold(synopsis(*command)),
                   command->get_description() + "." +
                       (more.empty() ? "" : "\n" + more.substr(0, more.size() - 1)));
  }
  return text;
}

std::string closing_sections() {
  return ".SH EXIT STATUS\n" + tagged("0", "Done.") + tagged("1", "Failed.") +
         tagged("2", "Wrong usage.") + tagged("130", "Ended by Ctrl-C.") + ".SH ENVIRONMENT\n" +
         tagged(bold("NO_COLOR"), "Turns colours off.") +
         tagged(bold("XDG_STATE_HOME"),
                "Holds the folder quire, in which a chat keeps its history; ~/.local/state unless "
                "set.") +
         ".SH EXAMPLES\n.nf\n" +
         escaped(
             "quire run MODEL \"What has changed?\"\n"
             "quire chat MODEL --document notes.txt\n"
             "quire help chunk add\n") +
         ".fi\n";
}

}  // namespace

std::string man_page(const CLI::App& app) {
  const SharedOptions shared(app);
  std::string text = ".TH QUIRE 1 " + std::string(kDate) + " " +
                     macro_argument(std::string("quire ") + version()) + " \"User Commands\"\n";
  text += ".SH NAME\nquire \\- language models whose KV cache is yours\n";
  text += ".SH SYNOPSIS\n.B quire\n.I COMMAND\n[OPTIONS] ARGUMENTS\n";
  text +=
      ".SH DESCRIPTION\n" + escaped(app.get_description()) +
      ".\nOptions may stand anywhere.\n"
      "Each command has \\fB\\-\\-help\\fR; \\fBquire help\\fR \\fICOMMAND\\fR shows the same.\n";
  for (const CLI::Option* const option : app.get_options({})) {
    text += tagged_option(*option);
  }
  text += ".SH COMMANDS\n";
  for (const CLI::App* const command : app.get_subcommands({})) {
    text += command_section(*command, shared);
  }
  return text + shared.sections() + chat_section() + closing_sections();
}

}  // namespace quire::cli
