// quire chunk and quire compose: one command of a script, on chunks that a store keeps between
// processes.
#include <CLI/CLI.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
  std::vector<std::string> words;  // of the script's command, the model among them
  bool verbose = false;
  LLMOptions engine;
  ChunkCacheOptions chunks;
};

// The model stands where other commands have it: first of all that is not part of the command.
Result<std::string> take_model(std::vector<std::string>& words) {
  const std::size_t place = words.front() == "chunk" ? 2 : 1;
  if (words.size() <= place) {
    return {ErrorCode::kInvalidArgument,
            "give " + (place == 2 ? kChunkWords + std::string(" and ") : "") + "MODEL"};
  }
  const auto model = words.begin() + static_cast<std::ptrdiff_t>(place);
  std::string name = *model;
  words.erase(model);
  return name;
}

int run_stored(StoredOptions options) {
  auto model = take_model(options.words);
  if (!model.ok()) {
    return fail_options(model.error());
  }
  for (const Status& valid : {options.engine.validate(), options.chunks.validate()}) {
    if (!valid.ok()) {
      return fail_options(valid.error());
    }
  }
  const bool adds = options.words.size() > 1 && options.words[1] == "add";
  const auto action = parse_command(std::move(options.words), Format::kText);
  if (!action.ok()) {
    return fail_options(action.error());
  }
  // Looking makes no store, only adding does.
  if (const Status there = check_store(options.engine.store, adds); !there.ok()) {
    return fail_options(there.error());
  }
  Interrupts interrupts;
  auto llm = load_chunked(*model, options.engine, options.chunks, options.verbose);
  if (!llm.ok()) {
    return fail(llm.error());
  }
  ScriptSession session{
      .llm = std::move(llm).value(), .interrupts = interrupts, .adds_to_store = true};
  const Status done = (*action)(session);
  if (!done.ok()) {
    return fail_options(done.error());
  }
  return session.interrupted ? kExitInterrupted : kExitOk;
}

void add_stored(CLI::App& app, Action& action, const std::string& name, const std::string& help) {
  CLI::App* command = app.add_subcommand(name, help);
  auto options = std::make_shared<StoredOptions>();
  command->allow_extras();
  command->footer([name] { return script_help(name); });
  command->add_flag("--verbose", options->verbose, "report the time of loading on stderr");
  add_engine_options(*command, options->engine);
  command->get_option("--store")->description("directory where chunks live")->required();
  add_salt(*command, options->chunks.salt);
  command->callback([command, name, options, &action] {
    options->words = command->remaining();
    options->words.insert(options->words.begin(), name);
    action = [options] { return run_stored(*options); };
  });
}

}  // namespace

void add_chunk(CLI::App& app, Action& action) {
  add_stored(app, action, "chunk",
             std::string("Chunks in a store: chunk ") + kChunkWords + " MODEL ... --store DIR");
}

void add_compose(CLI::App& app, Action& action) {
  add_stored(app, action, "compose",
             "Show what running chunks of a store would do: compose MODEL CHUNK ... --store DIR");
}

}  // namespace quire::cli
