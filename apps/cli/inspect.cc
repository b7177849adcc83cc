// quire inspect: what a model holds and needs.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>
#include <string>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::cli {
namespace {

struct InspectOptions {
  std::string model;
  Format format = Format::kText;
};

// `text` is JSON that the library made.
int print_model(const std::string& text, Format format) {
  const Status done = format == Format::kJson ? print(text + "\n")
                                              : print(format_listing(boost::json::parse(text)));
  return done.ok() ? kExitOk : fail(done.error());
}

int inspect(const InspectOptions& options) {
  const auto text = inspect_json(options.model);
  return text.ok() ? print_model(text.value(), options.format) : fail(text.error());
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a model holds, needs in memory, and what of it is unsupported");
  auto options = std::make_shared<InspectOptions>();
  add_model(*command, options->model);
  add_format(*command, options->format);
  command->callback([options, &action] { action = [options] { return inspect(*options); }; });
}

}  // namespace quire::cli
