#include "program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"
#include "usage.h"
#include "word_order.h"

namespace quire::cli {
namespace {

int print_or_fail(const std::string& text) {
  const Status done = print(text);
  return done.ok() ? kExitOk : fail(done.error());
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  CLI::App app("Quire: language models whose KV cache is yours", kProgram);
  app.set_version_flag("--version", std::string("quire ") + version());
  app.require_subcommand(1);
  Action action;
  add_run(app, action);
  add_chat(app, action);
  add_tokenize(app, action);
  add_inspect(app, action);
  add_doctor(app, action);
  add_bench(app, action);
  add_chunk(app, action);
  add_compose(app, action);
  add_script(app, action);
  add_store(app, action);
  add_serve(app, action);
  add_completion(app, action);
  add_help(app, action);
  add_version(app, action);
  refuse_no_numbers(app);
  try {
    const std::span given = std::span(argv, static_cast<std::size_t>(argc)).subspan(1);
    std::vector<std::string> words = in_order(app, {given.begin(), given.end()});
    std::ranges::reverse(words);  // CLI11 takes them in this order
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    const std::span words(argv, static_cast<std::size_t>(argc));
    std::string wrong = unknown_help(app, words.subspan(1));
    if (wrong.empty()) {
      wrong = unknown_word(app);
    }
    return wrong.empty() ? print_or_fail(help_of(app)) : fail_usage(wrong);
  } catch (const CLI::CallForVersion& version) {
    return print_or_fail(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    return fail_usage(usage_message(app, error));
  }
  return action();
}

}  // namespace quire::cli
