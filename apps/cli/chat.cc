// quire chat: a conversation, on a terminal or through a pipe.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "command.h"
#include "conversation.h"
#include "generate.h"
#include "interrupts.h"
#include "line_reader.h"
#include "options.h"
#include "output.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"

namespace quire::cli {
namespace {

constexpr std::string_view kHelp =
    "/help  this list\n"
    "/exit  leaves (so does the end of input)\n"
    "Ctrl-C ends an answer; twice in a row at the prompt it leaves.\n";

struct ChatCommand {
  std::string model;
  bool verbose = false;
  Format format = Format::kText;
  LLMOptions engine;
  SamplingParams sampling;
  ChatOptions conversation;
};

// One conversation with one loaded model.
class Session {
 public:
  Session(const ChatCommand& options, LLM llm, Conversation conversation, Interrupts& interrupts)
      : options_(options),
        llm_(std::move(llm)),
        conversation_(std::move(conversation)),
        interrupts_(interrupts),
        reader_(interrupts) {}

  // Reads and answers lines until the end. A turn that fails changes nothing; the session goes on
  // and the exit code tells of it when nobody sat at a terminal to see it.
  int loop() {
    std::string line;
    bool failed = false;
    bool interrupted_before = false;
    while (!leaving_) {
      const LineResult result = reader_.next(line);
      if (result == LineResult::kEnd) {
        break;
      }
      if (result == LineResult::kInterrupted) {
        if (std::exchange(interrupted_before, true)) {
          return kExitInterrupted;
        }
        note("(press Ctrl-C again or type /exit to leave)");
        continue;
      }
      interrupted_before = false;
      if (const Status done = handle(line); !done.ok()) {
        fail(done.error());
        failed = true;
      }
    }
    return failed && !reader_.interactive() ? kExitFailed : kExitOk;
  }

 private:
  Status handle(const std::string& line) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      return {};
    }
    if (line.front() == '/') {
      return command(line);
    }
    return answer(line);
  }

  Status command(const std::string& line) {
    const std::string name = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    if (name == "/exit") {
      leaving_ = true;
      return {};
    }
    if (name == "/help") {
      return print(kHelp);
    }
    return {ErrorCode::kInvalidArgument, "unknown command \"" + name + "\"; /help lists them"};
  }

  Status answer(const std::string& question) {
    conversation_.add_user(question);
    interrupts_.arm();
    auto generation = generate();
    interrupts_.disarm();
    if (!generation.ok()) {
      conversation_.drop_last();
      return std::move(generation).error();
    }
    const GenerationOutput& output = generation.value().output;
    conversation_.add_assistant(output.text);
    QUIRE_TRY_STATUS(options_.format == Format::kJson ? print_json(to_json(output)) : print("\n"));
    if (options_.verbose) {
      note(summary(output));
    }
    return {};
  }

  Result<Generation> generate() {
    QUIRE_TRY(Stream stream, llm_.stream_chat(conversation_.messages_json(), options_.sampling,
                                              conversation_.variables_json()));
    const bool streaming = options_.format == Format::kText;
    return follow(llm_, std::move(stream), interrupts_, [streaming](std::string_view delta) {
      return streaming ? print(delta) : Status();
    });
  }

  const ChatCommand& options_;
  LLM llm_;
  Conversation conversation_;
  Interrupts& interrupts_;
  LineReader reader_;
  bool leaving_ = false;
};

Result<Conversation> begin(const ChatCommand& options, const LLM& llm) {
  QUIRE_TRY(const Tokenizer tokenizer, llm.tokenizer());
  if (!tokenizer.has_chat_template()) {
    return {ErrorCode::kUnsupported,
            "\"" + options.model + "\" has no chat template; use quire run"};
  }
  return Conversation::open(options.conversation, tokenizer);
}

int chat(const ChatCommand& options) {
  for (const Status& valid : {options.engine.validate(), options.sampling.validate()}) {
    if (!valid.ok()) {
      return fail_options(valid.error());
    }
  }
  Interrupts interrupts;
  auto llm = load(options.model, options.engine, options.verbose);
  if (!llm.ok()) {
    return fail(llm.error());
  }
  auto conversation = begin(options, llm.value());
  if (!conversation.ok()) {
    return fail(conversation.error());
  }
  Session session(options, std::move(llm).value(), std::move(conversation).value(), interrupts);
  return session.loop();
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a model, line by line");
  auto options = std::make_shared<ChatCommand>();
  add_model(*command, options->model);
  command->add_flag("--verbose", options->verbose, "report times and reuse on stderr");
  add_format(*command, options->format);
  add_chat_options(*command, options->conversation);
  add_sampling_options(*command, options->sampling);
  add_engine_options(*command, options->engine);
  command->callback([options, &action] { action = [options] { return chat(*options); }; });
}

}  // namespace quire::cli
