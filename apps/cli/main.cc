// The program `quire`. Exit codes: 0 ok, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
#include <fcntl.h>
#include <signal.h>  // SIGPIPE is of POSIX
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <clocale>
#include <cstddef>
#include <exception>
#include <span>
#include <string>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"
#include "usage.h"

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

int run(int argc, const char* const* argv) {
  CLI::App app("Quire: language models whose KV cache is yours", quire::cli::kProgram);
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
  quire::cli::add_serve(app, action);
  quire::cli::add_completion(app, action);
  quire::cli::add_help(app, action);
  quire::cli::add_version(app, action);
  quire::cli::refuse_no_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::span words(argv, static_cast<std::size_t>(argc));
    std::string wrong = quire::cli::unknown_help(app, words.subspan(1));
    if (wrong.empty()) {
      wrong = quire::cli::unknown_word(app);
    }
    return wrong.empty() ? print_or_fail(quire::cli::help_of(app)) : quire::cli::fail_usage(wrong);
  } catch (const CLI::CallForVersion& version) {
    return print_or_fail(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    return quire::cli::fail_usage(quire::cli::usage_message(app, error));
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
