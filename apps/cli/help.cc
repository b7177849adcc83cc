// quire help and quire version: what is known without a model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "man.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"
#include "usage.h"

namespace quire::cli {
namespace {

int printed(const Status& done) { return done.ok() ? kExitOk : fail(done.error()); }

// Prints the help of the command that the words name, one below the other.
int show_help(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> below_it = command->get_subcommands({});
    const auto found = std::ranges::find(below_it, word, &CLI::App::get_name);
    const CLI::App* const below = found == below_it.end() ? nullptr : *found;
    if (below == nullptr) {
      return fail_usage(command->get_subcommands({}).empty()
                            ? "\"" + command->get_name() + "\" has no commands, such as \"" + word +
                                  "\"; quire help " + command->get_name() + " shows its options"
                            : unknown_command(*command, word));
    }
    command = below;
  }
  return printed(print(help_text(*command)));
}

}  // namespace

void add_help(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("help", "Show the help of a command, as --help does");
  auto words = std::make_shared<std::vector<std::string>>();
  auto manual = std::make_shared<bool>(false);
  CLI::Option* const named =
      command->add_option("COMMAND", *words, "such as run, or chunk add; without it all commands");
  command->add_flag("--man", *manual, "print the manual page quire(1): quire help --man | man -l -")
      ->excludes(named);
  command->callback([words, manual, &app, &action] {
    action = [words, manual, &app] {
      return *manual ? printed(print(man_page(app))) : show_help(app, *words);
    };
  });
}

void add_version(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("version", "Show the version, as --version does");
  auto format = std::make_shared<Format>(Format::kText);
  add_format(*command, *format);
  command->callback([format, &action] {
    action = [format] {
      return printed(*format == Format::kJson ? print_json({{"version", version()}})
                                              : print(std::string("quire ") + version() + "\n"));
    };
  });
}

}  // namespace quire::cli
