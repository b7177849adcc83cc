// quire run: one prompt, one answer.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "compose.h"
#include "conversation.h"
#include "generate.h"
#include "interrupts.h"
#include "options.h"
#include "output.h"
#include "quire/chunks.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::cli {
namespace {

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::vector<TokenId> prompt_ids;
  bool chat = false;
  bool verbose = false;
  Format format = Format::kText;
  LLMOptions engine;
  SamplingParams sampling;
  ChatOptions conversation;
  ChunkCacheOptions chunks;
  ComposeOptions composing;
};

bool takes_chunks(const RunOptions& options) { return !options.composing.chunks.empty(); }

Status validate(const RunOptions& options) {
  const auto refuse = [](const char* message) {
    return Status(ErrorCode::kInvalidArgument, message);
  };
  const int sources = static_cast<int>(options.prompt.has_value()) +
                      static_cast<int>(options.prompt_file.has_value()) +
                      static_cast<int>(!options.prompt_ids.empty());
  if (sources > 1) {
    return refuse("give only one of PROMPT, --prompt-file and --prompt-ids");
  }
  if (takes_chunks(options)) {
    QUIRE_TRY_STATUS(check_store(options.engine.store, false));
    QUIRE_TRY_STATUS(options.chunks.validate());
  } else if (!options.engine.store.empty() && !options.engine.cache_weights) {
    return refuse("--store needs --chunk or --cache-weights");
  } else if (sources == 0 && isatty(STDIN_FILENO) == 1) {
    return refuse("no prompt: give PROMPT, --prompt-file or --prompt-ids, or pipe text in");
  }
  const ChatOptions& conversation = options.conversation;
  if (!options.chat && !(conversation.system.empty() && conversation.document_files.empty())) {
    return refuse("--system and --document need --chat");
  }
  if (options.chat && !options.prompt_ids.empty()) {
    return refuse("--chat takes text, not --prompt-ids");
  }
  QUIRE_TRY_STATUS(options.engine.validate());
  return options.sampling.validate();
}

// The text of the prompt. Files and pipes end in a newline that nobody meant.
Result<std::string> prompt_text(const RunOptions& options) {
  if (options.prompt.has_value()) {
    return *options.prompt;
  }
  QUIRE_TRY(std::string text, read_text(options.prompt_file.value_or("-")));
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

Result<Stream> start(LLM& llm, const RunOptions& options, const std::string& text) {
  if (!options.prompt_ids.empty()) {
    return llm.stream(options.prompt_ids, options.sampling);
  }
  if (!options.chat) {
    return llm.stream(text, options.sampling);
  }
  QUIRE_TRY(const Tokenizer tokenizer, llm.tokenizer());
  QUIRE_TRY(Conversation conversation, Conversation::open(options.conversation, tokenizer));
  conversation.add_user(text);
  return llm.stream_chat(conversation.messages_json(), options.sampling,
                         conversation.variables_json());
}

// Streams the text to stdout, unless all of it is printed at the end.
Result<Generation> follow_to_stdout(LLM& llm, Stream stream, Interrupts& interrupts,
                                    Format format) {
  interrupts.arm();
  return follow(llm, std::move(stream), interrupts, [format](std::string_view delta) {
    return format == Format::kText ? print(delta) : Status();
  });
}

// A question that is given as text does not stay in the store, unless it was there.
Result<Generation> generate_from_chunks(ChunkedLLM& llm, const ComposeOptions& composing,
                                        const RunOptions& options, Interrupts& interrupts) {
  QUIRE_TRY(const Resolved composed, resolve(llm, composing));
  auto stream = llm.stream_from_chunks(composed.spec, options.sampling);
  auto generation = stream.ok() ? follow_to_stdout(llm.llm(), std::move(stream).value(), interrupts,
                                                   options.format)
                                : stream.error();
  if (composed.adds_query) {
    QUIRE_TRY([[maybe_unused]] const bool deleted, llm.delete_chunk(composed.spec.query_chunk_id));
  }
  return generation;
}

Result<Generation> generate(const RunOptions& options, Interrupts& interrupts) {
  std::string text;
  if (options.prompt_ids.empty()) {
    QUIRE_TRY(text, prompt_text(options));
  }
  QUIRE_TRY(LLM llm, load(options.model, options.engine, options.verbose));
  QUIRE_TRY(Stream stream, start(llm, options, text));
  return follow_to_stdout(llm, std::move(stream), interrupts, options.format);
}

int finish(const RunOptions& options, const Generation& generation) {
  const GenerationOutput& output = generation.output;
  const Status written =
      options.format == Format::kJson ? print(to_json(output) + "\n") : print("\n");
  if (!written.ok()) {
    return fail(written.error());
  }
  if (options.verbose) {
    note(summary(output));
  }
  return generation.interrupted ? kExitInterrupted : kExitOk;
}

// Whether the chunks, which are all there, have no query among them.
bool lack_query(const ChunkedLLM& llm, const std::vector<std::string>& chunks) {
  return std::ranges::all_of(chunks, [&](const std::string& reference) {
    const auto chunk = find_chunk(llm, reference);
    return chunk.ok() && chunk->type != ChunkType::kQuery;
  });
}

int run_chunks(const RunOptions& options, Interrupts& interrupts) {
  ComposeOptions composing = options.composing;
  const auto read_query = [&]() -> Status {
    QUIRE_TRY(composing.query, prompt_text(options));
    return {};
  };
  const bool given = options.prompt.has_value() || options.prompt_file.has_value();
  if (const Status read = given ? read_query() : Status(); !read.ok()) {
    return fail(read.error());
  }
  auto llm = load_chunked(options.model, options.engine, options.chunks, options.verbose);
  if (!llm.ok()) {
    return fail(llm.error());
  }
  if (!given && isatty(STDIN_FILENO) == 0 && lack_query(*llm, composing.chunks)) {
    if (const Status read = read_query(); !read.ok()) {
      return fail(read.error());
    }
    if (composing.query == std::string()) {
      composing.query.reset();
    }
  }
  // As of the other commands on chunks, a name that means several is wrong usage.
  const auto generation = generate_from_chunks(*llm, composing, options, interrupts);
  return generation.ok() ? finish(options, *generation) : fail_options(generation.error());
}

int run_prompt(const RunOptions& options) {
  if (const Status valid = validate(options); !valid.ok()) {
    return fail_options(valid.error());
  }
  Interrupts interrupts;
  if (takes_chunks(options)) {
    return run_chunks(options, interrupts);
  }
  const auto generation = generate(options, interrupts);
  return generation.ok() ? finish(options, *generation) : fail(generation.error());
}

// Chunks of a store in place of a prompt, with how they are composed.
void declare_chunks(CLI::App& command, RunOptions& options) {
  CLI::Option* chunk = add_chunk_option(command, options.composing.chunks);
  CLI::Option* store = command.get_option("--store")->description("directory where chunks live");
  chunk->needs(store)->excludes("--chat")->excludes("--prompt-ids");
  add_salt(command, options.chunks.salt)->needs(chunk);
  add_composing_options(command, options.composing.spec);
  const auto composes = [](const CLI::Option* option) {
    return option->get_group() == kComposingGroup;
  };
  for (CLI::Option* how : command.get_options(composes)) {
    how->needs(chunk);
  }
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("run", "Answer one prompt");
  auto options = std::make_shared<RunOptions>();
  add_model(*command, options->model);
  command->add_option("PROMPT", options->prompt, "text; without it stdin is read");
  command->add_option("--prompt-file", options->prompt_file, "file with the prompt, - for stdin");
  add_list(*command, "--prompt-ids", options->prompt_ids, "token ids instead of text, as 1,15,7");
  command->add_flag("--chat", options->chat, "put the prompt through the model's chat template");
  command->add_flag("--verbose", options->verbose, "report times and reuse on stderr");
  add_format(*command, options->format);
  add_chat_options(*command, options->conversation);
  add_sampling_options(*command, options->sampling);
  add_engine_options(*command, options->engine);
  declare_chunks(*command, *options);
  command->callback([options, &action] { action = [options] { return run_prompt(*options); }; });
}

}  // namespace quire::cli
