// The program `quire`. Exit codes: 0 ok, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
#include <fcntl.h>
#include <signal.h>  // SIGPIPE is of POSIX
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <exception>
#include <string>
#include <vector>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace {

using quire::cli::Action;

// Descriptors 0 to 2 must be taken, or the first files opened become them and get our output.
void occupy_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDONLY);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  close(descriptor);
}

int print_or_fail(const std::string& text) {
  const quire::Status done = quire::cli::print(text);
  return done.ok() ? quire::cli::kExitOk : quire::cli::fail(done.error());
}

// What is wrong where a word stands that should be a command, also below one of them; "" when all
// is well.
std::string unknown_command(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining();
  const auto word =
      std::ranges::find_if(rest, [](const std::string& text) { return !text.starts_with('-'); });
  if (word == rest.end()) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const bool wants_one = !chosen.empty() && !chosen.front()->get_subcommands({}).empty();
    return wants_one ? unknown_command(*chosen.front()) : "";
  }
  std::string names;
  for (const CLI::App* const command : app.get_subcommands({})) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return "unknown command \"" + *word + "\"; there are " + names;
}

int run(int argc, const char* const* argv) {
  CLI::App app("Quire: language models whose KV cache is yours", "quire");
  app.set_version_flag("--version", std::string("quire ") + quire::version());
  app.require_subcommand(1);
  Action action;
  quire::cli::add_run(app, action);
  quire::cli::add_chat(app, action);
  quire::cli::add_tokenize(app, action);
  quire::cli::add_inspect(app, action);
  quire::cli::add_doctor(app, action);
  quire::cli::add_bench(app, action);
  quire::cli::add_chunk(app, action);
  quire::cli::add_compose(app, action);
  quire::cli::add_script(app, action);
  quire::cli::add_store(app, action);
  quire::cli::refuse_empty_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string unknown = unknown_command(app);
    return unknown.empty() ? print_or_fail(quire::cli::help_of(app))
                           : quire::cli::fail_usage(unknown);
  } catch (const CLI::CallForVersion& version) {
    return print_or_fail(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    const std::string first = argc > 1 ? argv[1] : "";
    const std::string unknown = unknown_command(app);
    return quire::cli::fail_usage(
        unknown.empty() ? quire::cli::usage_message(error, first) + "; see quire --help" : unknown);
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  signal(SIGPIPE, SIG_DFL);  // whose reader left ends quietly, whatever our parent ignored
  std::setlocale(LC_CTYPE, "C.UTF-8");
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return quire::cli::fail({quire::ErrorCode::kInternal, error.what()});
  }
}
