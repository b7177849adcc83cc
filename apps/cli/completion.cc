// quire completion: scripts for shells, made from the commands and options that the program has.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

// A command, or the program itself, as a shell sees it.
struct Completed {
  std::string path;                    // "chunk add"; "" for the program
  std::vector<const CLI::App*> below;  // commands that may follow
  std::vector<const CLI::Option*> options;
};

void collect(const CLI::App& app, const std::string& path,
             std::vector<const CLI::Option*> inherited, std::vector<Completed>& all) {
  for (const CLI::Option* const option : app.get_options({})) {
    if (option->nonpositional()) {
      inherited.push_back(option);
    }
  }
  const std::vector<const CLI::App*> below = app.get_subcommands({});
  all.push_back({.path = path, .below = below, .options = inherited});
  if (path.empty()) {
    inherited.clear();  // those of the program stand before its commands
  }
  for (const CLI::App* const command : below) {
    collect(*command, path + (path.empty() ? "" : " ") + command->get_name(), inherited, all);
  }
}

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : "--" + option.get_lnames().front();
}

// Returns the values that an option takes, where they are a list of words: "text|json".
std::vector<std::string> choices(const CLI::Option& option) {
  std::vector<std::string> words;
  const std::string& text = option.get_option_text();
  if (text.find('|') == std::string::npos ||
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_|0123456789") != std::string::npos) {
    return words;
  }
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('|', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

std::vector<std::string> words_of(const Completed& command) {
  std::vector<std::string> words;
  words.reserve(command.below.size() + command.options.size());
  for (const CLI::App* const below : command.below) {
    words.push_back(below->get_name());
  }
  for (const CLI::Option* const option : command.options) {
    words.push_back(long_name(*option));
  }
  return words;
}

// Returns a branch of a `case` of bash and zsh.
std::string branch(const std::string& pattern, const std::string& offer) {
  return "    \"" + pattern + "\") offer=\"" + offer + "\" ;;\n";
}

// Returns values, by the command and the option before.
std::string values_by_option(const std::vector<Completed>& all) {
  std::string text;
  for (const Completed& command : all) {
    for (const CLI::Option* const option : command.options) {
      const std::string values = joined(choices(*option));
      text += values.empty() ? "" : branch(command.path + ":" + long_name(*option), values);
    }
  }
  return text;
}

std::string paths(const std::vector<Completed>& all) {
  std::string text;
  for (const Completed& command : all) {
    text += command.path.empty() ? "" : (text.empty() ? "\"" : "|\"") + command.path + "\"";
  }
  return text;
}

std::string words_by_path(const std::vector<Completed>& all) {
  std::string text;
  for (const Completed& command : all) {
    text += branch(command.path, joined(words_of(command)));
  }
  return text;
}

// Returns the part that bash and zsh share: which command stands on the line, and what may follow
// it.
std::string shell_function(const std::vector<Completed>& all) {
  return "_quire_offer() {  # the word before, then the words of the line; sets offer\n"
         "  local before=$1 command= next word\n"
         "  shift\n"
         "  for word; do\n"
         "    next=\"${command:+$command }$word\"\n"
         "    case \"$next\" in " +
         paths(all) +
         ") command=$next ;; esac\n"
         "  done\n"
         "  offer=\n"
         "  case \"$command:$before\" in\n" +
         values_by_option(all) +
         "  esac\n"
         "  [ -n \"$offer\" ] && return\n"
         "  case \"$command\" in\n" +
         words_by_path(all) +
         "  esac\n"
         "}\n";
}

std::string bash_script(const std::vector<Completed>& all) {
  return "# Completion of quire for bash: source <(quire completion bash)\n" + shell_function(all) +
         "_quire() {\n"
         "  local offer\n"
         "  _quire_offer \"${COMP_WORDS[COMP_CWORD-1]}\" \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"\n"
         "  COMPREPLY=($(compgen -W \"$offer\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
         "}\n"
         "complete -o default -F _quire quire\n";
}

std::string zsh_script(const std::vector<Completed>& all) {
  return "#compdef quire\n"
         "# Completion of quire for zsh: quire completion zsh > _quire, in a folder of $fpath\n" +
         shell_function(all) +
         "_quire() {\n"
         "  local offer\n"
         "  _quire_offer \"${words[CURRENT-1]}\" \"${(@)words[2,CURRENT-1]}\"\n"
         "  compadd -- ${=offer}\n"
         "  _files\n"
         "}\n"
         "[ \"$funcstack[1]\" = _quire ] && _quire \"$@\" || compdef _quire quire\n";
}

// Returns the text in single quotes of fish.
std::string in_quotes(std::string text) {
  for (std::size_t at = 0; (at = text.find_first_of("'\\", at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return "'" + text + "'";
}

// Returns the condition under which fish offers what follows `path`.
std::string condition(const Completed& command) {
  if (command.path.empty()) {
    return " -n __fish_use_subcommand";
  }
  std::string test;
  for (std::size_t at = 0; at <= command.path.size();) {
    const std::size_t end = std::min(command.path.find(' ', at), command.path.size());
    test += (test.empty() ? "" : "; and ") +
            ("__fish_seen_subcommand_from " + command.path.substr(at, end - at));
    at = end + 1;
  }
  return " -n " + in_quotes(test);
}

std::string fish_script(const std::vector<Completed>& all) {
  std::string text = "# Completion of quire for fish: quire completion fish | source\n";
  for (const Completed& command : all) {
    const std::string line = "complete -c quire" + condition(command);
    for (const CLI::App* const below : command.below) {
      text +=
          line + " -a " + below->get_name() + " -d " + in_quotes(below->get_description()) + "\n";
    }
    for (const CLI::Option* const option : command.options) {
      const std::string values = joined(choices(*option));
      const bool takes_value = option->get_items_expected_max() > 0;
      text += line + " -l " + long_name(*option).substr(2) + (takes_value ? " -r" : "") +
              (values.empty() ? "" : " -fa " + in_quotes(values)) + " -d " +
              in_quotes(option->get_description()) + "\n";
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("completion", "Print a script with which a shell completes quire's words");
  using Write = std::string (*)(const std::vector<Completed>&);
  static constexpr Write kWriters[] = {&bash_script, &zsh_script, &fish_script};
  auto shell = std::make_shared<std::size_t>(0);
  add_choice(
      *command, "SHELL", {"bash", "zsh", "fish"}, [shell](std::size_t index) { *shell = index; },
      "bash, zsh or fish")
      ->required();
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::vector<Completed> all;
      collect(app, "", {}, all);
      const Status done = print(kWriters[*shell](all));
      return done.ok() ? kExitOk : fail(done.error());
    };
  });
}

}  // namespace quire::cli
