// quire run: one prompt, one answer.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "command.h"
#include "compose.h"
#include "conversation.h"
#include "generate.h"
#include "interrupts.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "quire/chunks.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"
#include "quire/types.h"
#include "utf8.h"

namespace quire::cli {
namespace {

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::vector<TokenId> prompt_ids;
  bool chat = false;  // with the chat template, whatever the prompt begins with
  bool raw = false;   // without it
  bool verbose = false;
  Format format = Format::kText;
  LLMOptions engine;
  SamplingParams sampling;
  RequestOptions request;
  ChatOptions conversation;
  ChunkCacheOptions chunks;
  ComposeOptions composing;
};

bool takes_chunks(const RunOptions& options) { return !options.composing.chunks.empty(); }

bool has_conversation(const RunOptions& options) {
  return !options.conversation.system.empty() || !options.conversation.document_files.empty();
}

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
  const bool is_plain = options.raw || takes_chunks(options) || !options.prompt_ids.empty();
  if (is_plain && has_conversation(options)) {
    return refuse(
        "--system and --document go through the chat template; leave out --raw, "
        "--prompt-ids and --chunk");
  }
  if (options.chat && !options.prompt_ids.empty()) {
    return refuse("--chat takes text, not --prompt-ids");
  }
  QUIRE_TRY_STATUS(check_logprobs(options.sampling, options.format));
  QUIRE_TRY_STATUS(options.engine.validate());
  return options.sampling.validate();
}

// Reads a file, or stdin for "-", without the newline at its end that nobody meant.
Result<std::string> read_prompt(const std::string& file) {
  QUIRE_TRY(std::string text, read_strict_text(file));
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

// Returns the text that is piped in beside a prompt, or "".
Result<std::string> piped_text() {
  if (!text_is_piped()) {
    return std::string();
  }
  wait_for_piped_text();
  return read_prompt("-");
}

// Returns the text of the prompt; what is piped in stands behind one that is given.
Result<std::string> prompt_text(const RunOptions& options) {
  const std::string file = options.prompt_file.value_or("-");
  if (!options.prompt && file == "-") {
    return read_prompt("-");
  }
  std::string text = options.prompt.value_or("");
  if (!options.prompt) {
    QUIRE_TRY(text, read_prompt(file));
  }
  QUIRE_TRY(const std::string piped, piped_text());
  return piped.empty() ? text : text + "\n\n" + piped;
}

// Refuses text that is piped in where ids are the prompt.
Status check_no_text_piped(const RunOptions& options) {
  if (options.prompt_ids.empty()) {
    return {};
  }
  QUIRE_TRY(const std::string piped, piped_text());
  return piped.empty() ? Status()
                       : Status(ErrorCode::kInvalidArgument,
                                "text is piped in beside --prompt-ids; give one of the two");
}

// Returns whether a template made `text`: it begins with the special token with which the chat
// template begins.
bool begins_as_template(const Tokenizer& tokenizer, const std::string& text) {
  const auto rendered =
      tokenizer.apply_chat_template(R"([{"role": "user", "content": "question"}])");
  if (!rendered.ok() || rendered->empty()) {
    return false;
  }
  const auto plain = tokenizer.decode({rendered->data(), 1});
  const auto written = tokenizer.decode({rendered->data(), 1}, false);
  const bool is_special = plain.ok() && written.ok() && plain->empty() && !written->empty();
  return is_special && text.starts_with(*written);
}

// Returns whether the text goes through the chat template. kInvalidArgument where it must and there
// is none.
Result<bool> takes_template(const LLM& llm, const RunOptions& options, const std::string& text) {
  if (options.raw || !options.prompt_ids.empty()) {
    return false;
  }
  const auto tokenizer = llm.tokenizer();
  const bool has_template = tokenizer.ok() && tokenizer->has_chat_template();
  if (options.chat || has_conversation(options)) {
    return has_template ? Result<bool>(true)
                        : Error{.code = ErrorCode::kInvalidArgument,
                                .message = "\"" + options.model +
                                           "\" has no chat template, so that --chat, --system and "
                                           "--document have no place; put all into the prompt"};
  }
  return has_template && !begins_as_template(*tokenizer, text);
}

// Returns what the engine gets: ids, or a text that nothing is to be put around.
Result<Prompt> prompt_of(const LLM& llm, const RunOptions& options, const std::string& text) {
  if (!options.prompt_ids.empty()) {
    return Prompt(options.prompt_ids);
  }
  QUIRE_TRY(const bool with_template, takes_template(llm, options, text));
  if (!with_template) {
    return Prompt(text);
  }
  QUIRE_TRY(const Tokenizer tokenizer, llm.tokenizer());
  QUIRE_TRY(Conversation conversation, Conversation::open(options.conversation, tokenizer));
  conversation.add_user(text);
  QUIRE_TRY(std::vector<TokenId> ids,
            tokenizer.apply_chat_template(conversation.messages_json(), true,
                                          conversation.variables_json()));
  return Prompt(std::move(ids));
}

// Returns how many tokens will be computed, for those who watch; else perhaps 0.
std::int64_t expected_tokens(const LLM& llm, const Prompt& prompt) {
  if (const auto* const ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    return std::ssize(*ids);
  }
  const auto tokenizer = llm.tokenizer();
  if (!tokenizer.ok() || !watched()) {
    return 0;
  }
  const auto ids = tokenizer->encode(std::get<std::string>(prompt));
  return ids.ok() ? std::ssize(*ids) : 0;
}

// Streams the text to stdout, unless all of it is printed at the end.
Result<Generation> follow_to_stdout(LLM& llm, Stream stream, Interrupts& interrupts, Format format,
                                    ComputeProgress& progress) {
  interrupts.arm();
  const auto sink = [format](std::string_view delta) {
    return format == Format::kText ? print(delta) : Status();
  };
  return follow(llm, std::move(stream), interrupts, sink, progress);
}

// Generates from chunks. A question that is given as text does not stay in the store, unless it was
// there.
Result<Generation> generate_from_chunks(ChunkedLLM& llm, const ComposeOptions& composing,
                                        const RunOptions& options, Interrupts& interrupts) {
  QUIRE_TRY(const Resolved composed, resolve(llm, composing));
  ComputeProgress progress(llm.llm(), expected_tokens(llm, composed));
  auto stream = llm.stream_from_chunks(composed.spec, options.sampling, {}, options.request);
  auto generation = stream.ok() ? follow_to_stdout(llm.llm(), std::move(stream).value(), interrupts,
                                                   options.format, progress)
                                : stream.error();
  if (composed.adds_query) {
    QUIRE_TRY([[maybe_unused]] const bool deleted, llm.delete_chunk(composed.spec.query_chunk_id));
  }
  return generation;
}

Result<Generation> generate(const RunOptions& options, Interrupts& interrupts) {
  std::string text;
  QUIRE_TRY_STATUS(check_no_text_piped(options));
  if (options.prompt_ids.empty()) {
    QUIRE_TRY(text, prompt_text(options));
  }
  QUIRE_TRY(LLM llm, load(options.model, options.engine, options.verbose));
  QUIRE_TRY(const Prompt prompt, prompt_of(llm, options, text));
  ComputeProgress progress(llm, expected_tokens(llm, prompt));
  QUIRE_TRY(Stream stream, llm.stream(prompt, options.sampling, options.request));
  return follow_to_stdout(llm, std::move(stream), interrupts, options.format, progress);
}

int finish(const RunOptions& options, const Generation& generation) {
  const GenerationOutput& output = generation.output;
  const auto text = options.format == Format::kJson ? to_json(output) : std::string();
  const Status written = text.ok() ? print(*text + "\n") : text.error();
  if (!written.ok()) {
    return fail(written.error());
  }
  if (options.format == Format::kText && ended_at_once(output)) {
    note(std::string("(the answer is empty: the model ended it at once") +
         (options.raw || !options.prompt_ids.empty() ? "; its chat template was left out)" : ")"));
  }
  if (options.verbose) {
    note(summary(output));
  }
  return generation.interrupted ? kExitInterrupted : kExitOk;
}

// Returns whether no chunk is a query; all of them are there.
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
  } else if (!given) {
    note_unread_text("a query chunk");
  }
  // A name that means several chunks is wrong usage, as in the other commands on chunks.
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

// Declares the options of chunks of a store in place of a prompt.
void declare_chunks(CLI::App& command, RunOptions& options) {
  CLI::Option* chunk = add_chunk_option(command, options.composing.chunks);
  CLI::Option* store = command.get_option("--store")->description("directory where chunks live");
  chunk->needs(store)->excludes("--chat")->excludes("--raw")->excludes("--prompt-ids");
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
  command
      ->add_option("PROMPT", options->prompt,
                   "text; without it stdin is read, with it text that is piped in stands behind")
      ->check(refuse_no_utf8);
  command->add_option("--prompt-file", options->prompt_file, "file with the prompt, - for stdin");
  add_list(*command, "--prompt-ids", options->prompt_ids, "token ids instead of text, as 1,15,7");
  CLI::Option* raw = command->add_flag(
      "--raw", options->raw, "take the prompt as it is, without the model's chat template");
  command
      ->add_flag("--chat", options->chat,
                 "through the chat template, also a prompt that begins as the template does")
      ->excludes(raw);
  command->add_flag("--verbose", options->verbose, "report times and reuse on stderr");
  add_format(*command, options->format);
  add_chat_options(*command, options->conversation);
  add_sampling_options(*command, options->sampling);
  add_engine_options(*command, options->engine);
  add_urgency_options(*command, options->request);
  declare_chunks(*command, *options);
  command->callback([options, &action] { action = [options] { return run_prompt(*options); }; });
}

}  // namespace quire::cli
