// quire chunk and quire compose: one command of a script, on chunks that a store keeps between
// processes.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "chunk.h"
#include "command.h"
#include "generate.h"
#include "interrupts.h"
#include "options.h"
#include "output.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

struct StoredOptions {
  std::string model;
  ScriptAction script;  // action of the named command
  bool adds = false;    // a chunk, for which a store may be made
  bool verbose = false;
  LLMOptions engine;
  ChunkCacheOptions chunks;
};

int run_stored(const StoredOptions& options) {
  for (const Status& valid : {options.engine.validate(), options.chunks.validate()}) {
    if (!valid.ok()) {
      return fail_options(valid.error());
    }
  }
  // Looking makes no store, only adding does.
  if (const Status there = check_store(options.engine.store, options.adds); !there.ok()) {
    return fail_options(there.error());
  }
  Interrupts interrupts;
  auto llm = load_chunked(options.model, options.engine, options.chunks, options.verbose);
  if (!llm.ok()) {
    return fail(llm.error());
  }
  ScriptSession session{
      .llm = std::move(llm).value(), .interrupts = interrupts, .adds_to_store = true};
  const Status done = options.script(session);
  if (!done.ok()) {
    return fail_options(done.error());
  }
  return session.interrupted ? kExitInterrupted : kExitOk;
}

// Adds options of the engine and of the store, and what the program does with all that was parsed.
void add_stored(CLI::App& command, const std::shared_ptr<StoredOptions>& options, Action& action) {
  command.add_flag("--verbose", options->verbose, "report the time of loading on stderr")
      ->group("Engine");
  add_engine_options(command, options->engine);
  command.get_option("--store")->description("directory where chunks live")->required();
  add_salt(command, options->chunks.salt);
  // The command's callback is the script's own.
  command.parse_complete_callback(
      [options, &action] { action = [options] { return run_stored(*options); }; });
}

}  // namespace

void add_chunk(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chunk", "Register, list and delete chunks of a store");
  auto options = std::make_shared<StoredOptions>();
  declare_stored_chunk(*command, options->model, options->script);
  for (CLI::App* below : command->get_subcommands({})) {
    below->fallthrough();  // the options of `chunk` may stand behind those of its commands
  }
  add_stored(*command, options, action);
  command->get_subcommand("add")->parse_complete_callback([options] { options->adds = true; });
}

void add_compose(CLI::App& app, Action& action) {
  auto options = std::make_shared<StoredOptions>();
  declare_stored_compose(app, options->model, options->script);
  add_stored(*app.get_subcommand("compose"), options, action);
}

}  // namespace quire::cli
