// quire serve: an HTTP server. A build without it says so.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "command.h"
#include "output.h"
#include "quire/result.h"

#if QUIRE_HAS_SERVER
#include "keys.h"
#include "process/process.h"
#include "serve.h"
#endif

namespace quire::cli {

#if QUIRE_HAS_SERVER
namespace {

// Prints the digest of the key that stdin gives.
int print_key_hash() {
  std::string key;
  std::getline(std::cin, key);
  if (key.ends_with('\r')) {
    key.pop_back();
  }
  if (key.empty()) {
    return fail({ErrorCode::kInvalidArgument, "no key on stdin"});
  }
  const Status printed = print(server::hash_key(key) + "\n");
  return printed.ok() ? kExitOk : fail(printed.error());
}

int run_serve(const GivenOptions& given) {
  const auto config = read_serve_config(given);
  if (!config.ok()) {
    return fail_options(config.error());
  }
  return fail_options(server::run_server(
      {.config = *config, .reread = [given] { return read_serve_config(given); }}));
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's API");
  auto flags = std::make_shared<ServeFlags>();
  declare_serve(*command, *flags);
  command->callback([command, flags, &action] {
    if (flags->hash_key) {
      action = [] { return print_key_hash(); };
    } else {
      action = [given = given_options(*command)] { return run_serve(given); };
    }
  });
}
#else
void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP: not in this build");
  command->allow_extras();
  command->callback([&action] {
    action = [] { return fail({ErrorCode::kUnsupported, "this build has no server"}); };
  });
}
#endif

}  // namespace quire::cli
