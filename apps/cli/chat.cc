// quire chat: a conversation and the context it stands on, on a terminal or through a pipe.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "conversation.h"
#include "generate.h"
#include "interrupts.h"
#include "options.h"
#include "output.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "repl.h"

namespace quire::cli {
namespace {

struct ChatCommand {
  std::string model;
  LLMOptions engine;
  ContextOptions context;
  ChatOptions conversation;
  ReplOptions repl;
};

// System text, for want of one the BOS token that prompts begin with, and documents become the
// first items.
Status begin(const ChatOptions& options, const LLM& llm, ContextManager& context) {
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
  for (const std::string& path : options.document_files) {
    QUIRE_TRY(const std::string text, read_text(path));
    QUIRE_TRY([[maybe_unused]] const std::string id, context.add(text));
  }
  return {};
}

int chat(const ChatCommand& options) {
  for (const Status& valid : {options.engine.validate(), options.repl.sampling.validate()}) {
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
  auto context = ContextManager::open(llm.value(), with_store);
  if (!context.ok()) {
    return fail_options(context.error());
  }
  const Status begun = begin(options.conversation, llm.value(), context.value());
  if (!begun.ok()) {
    return fail(begun.error());
  }
  Repl repl(std::move(llm).value(), std::move(context).value(), options.repl, interrupts);
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
      [options = options.get()](ReuseMode mode) { options->context.mode = mode; },
      "what items have seen (anchored)");
  command->add_flag("--echo", options->repl.echo, "write each line of input before its answer");
  command->add_flag("--verbose", options->repl.verbose, "report times and reuse on stderr");
  add_format(*command, options->repl.format);
  add_chat_options(*command, options->conversation);
  add_sampling_options(*command, options->repl.sampling);
  add_engine_options(*command, options->engine);
  command->get_option("--store")->description(
      "directory where /save puts items and /restore finds them");
  add_salt(*command, options->context.salt);
  command->callback([options, &action] { action = [options] { return chat(*options); }; });
}

}  // namespace quire::cli
