// quire chat: a conversation and the context it stands on, on a terminal or through a pipe.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "command.h"
#include "conversation.h"
#include "generate.h"
#include "hub.h"
#include "interrupts.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/tools.h"
#include "quire/types.h"
#include "repl.h"

namespace quire::cli {
namespace {

struct ChatCommand {
  std::string model;
  LLMOptions engine;
  ContextOptions context;
  std::optional<ReuseMode> mode;
  ChatOptions conversation;
  ReplOptions repl;
};

std::int64_t count_tokens(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, false);
  return ids.ok() ? std::ssize(*ids) : 0;
}

// Makes the first items: system text, or else the BOS token that prompts begin with, and documents.
Status begin(const ChatOptions& options, const LLM& llm, ContextManager& context) {
  ComputeProgress progress(llm, 0);
  std::string system = options.system;
  const auto tokenizer = llm.tokenizer();
  if (system.empty() && tokenizer.ok()) {
    system = default_system(tokenizer.value());
  }
  std::optional<Prompt> first;
  if (!system.empty()) {
    first = system;
  } else if (const auto bos = tokenizer.ok() ? tokenizer->leading_bos_token_id() : std::nullopt) {
    first = std::vector{*bos};
  }
  if (first) {
    QUIRE_TRY([[maybe_unused]] const std::string id,
              context.add(*first, {.name = "", .tags = {}, .kind = ItemKind::kSystem}));
  }
  std::int64_t expected = 0;
  for (const std::string& path : options.document_files) {
    QUIRE_TRY(const std::string text, read_text(path));
    expected += watched() && tokenizer.ok() ? count_tokens(*tokenizer, text) : 0;
    progress.expect(expected);
    QUIRE_TRY([[maybe_unused]] const std::string id,
              context.add(text, {.name = "", .tags = {}, .active = true}, progress.beside({})));
  }
  // The documents before every question are computed before the first question.
  if (!options.document_files.empty()) {
    QUIRE_TRY([[maybe_unused]] const std::int64_t computed, context.populate(progress.beside({})));
  }
  return {};
}

// Returns the mode. Items have KV of their own, which a store can keep, only in mode anchored. A
// store for packed weights asks for no items.
ReuseMode mode_of(const ChatCommand& options) {
  const bool saves = !options.engine.store.empty() && !options.engine.cache_weights;
  return options.mode.value_or(saves ? ReuseMode::kAnchored : ReuseMode::kExact);
}

// Returns the model's name, the tokens that its context may have, and how answers are computed.
std::string banner(const std::string& model, ReuseMode mode) {
  std::error_code failure;
  const auto path = std::filesystem::absolute(expand_home(model), failure).lexically_normal();
  const auto named = path.has_filename() ? path : path.parent_path();
  std::string text = named.has_filename() ? named.filename().string() : model;
  const auto found = find_model(model);
  if (const auto report = found.ok() ? inspect_json(*found) : found.error(); report.ok()) {
    const boost::json::value inspected = boost::json::parse(*report);
    boost::system::error_code none;
    const boost::json::value* const positions =
        inspected.find_pointer("/shape/max_positions", none);
    text += positions == nullptr ? ""
                                 : ", context of " + boost::json::serialize(*positions) + " tokens";
  }
  return text + ", mode " + reuse_mode_name(mode) +
         "\n/help lists the commands, \"\"\" begins and ends a text of several lines, /bye "
         "leaves\n";
}

int chat(const ChatCommand& options) {
  for (const Status& valid : {options.engine.validate(), options.repl.sampling.validate(),
                              check_logprobs(options.repl.sampling, options.repl.format)}) {
    if (!valid.ok()) {
      return fail_options(valid.error());
    }
  }
  Interrupts interrupts;
  auto llm = load(options.model, options.engine, options.repl.verbose);
  if (!llm.ok()) {
    return fail(llm.error());
  }
  ContextOptions with_store = options.context;
  with_store.store = options.engine.store;
  with_store.mode = mode_of(options);
  auto context = ContextManager::open(llm.value(), with_store);
  if (!context.ok()) {
    return fail_options(context.error());
  }
  const Status begun = begin(options.conversation, llm.value(), context.value());
  if (!begun.ok()) {
    return fail(begun.error());
  }
  ReplOptions repl_options = options.repl;
  repl_options.has_store = !options.engine.store.empty();
  if (isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
    repl_options.banner = banner(options.model, with_store.mode);
  }
  Repl repl(std::move(llm).value(), std::move(context).value(), repl_options, interrupts);
  return repl.loop();
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("chat", "Talk with a model, line by line; /help lists its commands");
  auto options = std::make_shared<ChatCommand>();
  add_model(*command, options->model);
  add_named<ReuseMode>(
      *command, "--mode", &reuse_mode_name, {ReuseMode::kAnchored, ReuseMode::kExact},
      [options = options.get()](ReuseMode mode) { options->mode = mode; },
      "exact: as a plain prompt (default); anchored: items are computed once, under the system "
      "text "
      "(default with --store)");
  command->add_flag("--echo", options->repl.echo, "write each line of input before its answer");
  command->add_flag("--verbose", options->repl.verbose, "report times and reuse on stderr");
  add_format(*command, options->repl.format);
  add_chat_options(*command, options->conversation);
  add_sampling_options(*command, options->repl.sampling);
  add_urgency_options(*command, options->repl.request);
  add_engine_options(*command, options->engine);
  command->get_option("--store")->description(
      "directory where /save puts items and /restore finds them");
  add_salt(*command, options->context.salt);
  command->callback([options, &action] { action = [options] { return chat(*options); }; });
}

}  // namespace quire::cli
