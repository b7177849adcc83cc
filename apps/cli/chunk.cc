#include "chunk.h"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compose.h"
#include "generate.h"
#include "line.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "quire/chunks.h"
#include "quire/fields.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "utf8.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

CLI::Option* add_type(CLI::App& command, const std::function<void(ChunkType)>& set) {
  return add_named<ChunkType>(command, "--type", &chunk_type_name,
                              {ChunkType::kSystemPrompt, ChunkType::kContext, ChunkType::kQuery},
                              set, "kind of chunk");
}

json::value or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

json::value describe_error(const std::optional<KVError>& error) {
  if (!error) {
    return nullptr;
  }
  return json::object{
      {"key", error->key}, {"value", error->value}, {"bits_per_value", error->bits_per_value}};
}

json::object describe_chunk(const ChunkInfo& chunk, bool whole) {
  json::object object{{"chunk_id", chunk.chunk_id},
                      {"chunk_type", chunk_type_name(chunk.type)},
                      {"token_count", chunk.token_ids.size()},
                      {"metadata", json::parse(chunk.metadata_json)},
                      {"created_at", chunk.created_at},
                      {"last_accessed", chunk.last_accessed},
                      {"access_count", chunk.access_count},
                      {"pinned", chunk.pinned},
                      {"priority", chunk.priority},
                      {"anchor", or_null(chunk.anchor)},
                      {"num_variants", chunk.num_variants},
                      {"memory_bytes", chunk.memory_bytes},
                      {"kv_dtype", chunk.kv_dtype},
                      {"kv_error", describe_error(chunk.kv_error)},
                      {"saved", chunk.saved}};
  object["keep_hidden"] =
      chunk.keep_hidden ? json::value(*chunk.keep_hidden) : json::value(nullptr);
  object["ttl_seconds"] =
      chunk.ttl_seconds ? json::value(*chunk.ttl_seconds) : json::value(nullptr);
  object[whole ? "content" : "content_preview"] = whole ? chunk.content : preview(chunk.content);
  return object;
}

json::object describe_chunk(const CompositionInfo& info) {
  json::array segments;
  for (const CompositionInfo::Segment& segment : info.segments) {
    segments.push_back(json::object{{"chunk_id", segment.chunk_id},
                                    {"chunk_type", chunk_type_name(segment.type)},
                                    {"num_tokens", segment.num_tokens},
                                    {"position", segment.position},
                                    {"kv_dtype", segment.kv_dtype},
                                    {"cached", segment.cached},
                                    {"why_not", or_null(segment.why_not)}});
  }
  return {{"mode", reuse_mode_name(info.mode)},      {"grade", reuse_grade_name(info.grade)},
          {"total_tokens", info.total_tokens},       {"tokens_reused", info.tokens_reused},
          {"tokens_computed", info.tokens_computed}, {"num_levels", info.num_levels},
          {"num_blocks", info.num_blocks},           {"new_blocks", info.new_blocks},
          {"memory_bytes", info.memory_bytes},       {"retokenizes_alike", info.retokenizes_alike},
          {"segments", std::move(segments)}};
}

Status print_value(const json::value& value, Format format) {
  return format == Format::kJson ? print_json(value) : print(format_listing(value));
}

// Prints the result of a command as JSON. With the format of text it prints nothing.
Status confirm(const json::value& value, Format format) {
  return format == Format::kJson ? print_json(value) : Status();
}

// The parent of commands: the format of those that name none, the action to take, and, for the
// program's own commands, the model.
struct CommandParent {
  CLI::App& app;
  Format format = Format::kText;
  ScriptAction& action;
  std::string* model = nullptr;
};

CLI::App* add_command(const CommandParent& parent, const char* name, const char* help) {
  CLI::App* command = parent.app.add_subcommand(name, help);
  if (parent.model != nullptr) {
    add_model(*command, *parent.model);
  }
  return command;
}

// Declares options of a command.
template <class Options>
std::shared_ptr<Options> options_of(CLI::App& command, const CommandParent& parent) {
  auto options = std::make_shared<Options>();
  options->format = parent.format;
  add_format(command, options->format);
  return options;
}

struct AddOptions {
  Format format = Format::kText;
  std::optional<std::string> text, file, anchor;
  std::string name;
  std::vector<TokenId> token_ids;
  std::vector<std::string> metadata;  // KEY=VALUE
  bool no_anchor = false;
  ChunkContent chunk;
};

// Returns text, the content of a file, or token ids. Without them returns what is piped in, where
// `reads_stdin`.
Result<Prompt> content_of(const AddOptions& options, bool reads_stdin) {
  const int given = static_cast<int>(options.text.has_value()) +
                    static_cast<int>(options.file.has_value()) +
                    static_cast<int>(!options.token_ids.empty());
  if (given == 0 && reads_stdin && text_is_piped()) {
    wait_for_piped_text();
    QUIRE_TRY(std::string text, read_text("-"));
    if (!text.empty()) {
      return Prompt(std::move(text));
    }
  }
  if (given != 1) {
    return {ErrorCode::kInvalidArgument, std::string("give one of TEXT, --file and --token-ids") +
                                             (reads_stdin ? ", or pipe text in" : "")};
  }
  if (reads_stdin && options.file != "-") {
    note_unread_text(options.text ? "TEXT" : options.file ? "--file" : "--token-ids");
  }
  if (!options.token_ids.empty()) {
    return Prompt(options.token_ids);
  }
  if (options.file) {
    QUIRE_TRY(std::string text, read_text(*options.file));
    return Prompt(std::move(text));
  }
  return Prompt(options.text.value_or(""));
}

// Returns the anchor of several chunks, joined with "+".
Result<std::optional<std::string>> joined_anchor(const ScriptSession& session,
                                                 const std::string& names) {
  std::vector<std::string> ids;
  for (const std::string_view name : anchor_ids(names)) {
    QUIRE_TRY(const ChunkInfo chunk, find_chunk(session.llm, std::string(name), session.deleted));
    ids.push_back(chunk.chunk_id);
  }
  return std::optional(quire::anchor_of(ids));
}

// Returns the id of the system chunk that --anchor names, or several ids, "" for --no-anchor.
Result<std::optional<std::string>> anchor_of(const ScriptSession& session,
                                             const AddOptions& options) {
  if (!options.anchor && !options.no_anchor) {
    return std::optional<std::string>();
  }
  if (options.chunk.type != ChunkType::kContext) {
    return {ErrorCode::kInvalidArgument, std::string(options.anchor ? "--anchor" : "--no-anchor") +
                                             " belongs to --type context; leave it out"};
  }
  if (!options.anchor) {
    return std::optional<std::string>("");
  }
  const std::string& name = *options.anchor;
  auto found = find_chunk(session.llm, name, session.deleted);
  if (!found.ok() && name.find('+') != std::string::npos) {
    return joined_anchor(session, name);
  }
  QUIRE_TRY(const ChunkInfo anchor, std::move(found));
  if (anchor.type != ChunkType::kSystemPrompt) {
    return {ErrorCode::kInvalidArgument, "--anchor names \"" + name + "\", a " +
                                             chunk_type_name(anchor.type) +
                                             " chunk; give a system_prompt chunk, or --no-anchor"};
  }
  return std::optional(anchor.chunk_id);
}

Status register_text(ScriptSession& session, AddOptions& options) {
  QUIRE_TRY(options.chunk.content, content_of(options, session.adds_to_store));
  QUIRE_TRY(options.chunk.options.anchor, anchor_of(session, options));
  json::object metadata;
  for (const std::string& pair : options.metadata) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) {
      return {ErrorCode::kInvalidArgument, "--metadata wants KEY=VALUE, not \"" + pair + "\""};
    }
    metadata[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  if (!options.name.empty()) {
    metadata["name"] = options.name;
  }
  options.chunk.options.metadata_json = json::serialize(metadata);
  ComputeProgress progress(session.llm.llm(), 0);
  const auto registered = session.llm.register_with_details(
      {&options.chunk, 1}, progress.beside({}),
      [&progress](std::int64_t, std::int64_t wanted) { progress.expect(wanted); });
  progress.end();
  QUIRE_TRY(const std::vector<RegisteredChunk> chunks, registered);
  const std::string& id = chunks.front().chunk_id;
  if (session.adds_to_store) {
    QUIRE_TRY_STATUS(session.llm.flush_store());
  }
  QUIRE_TRY(const ChunkInfo chunk, session.llm.get_chunk(id));
  return options.format == Format::kJson ? print_json(describe_chunk(chunk, false))
                                         : print(id + "\n");
}

void declare_add(const CommandParent& parent) {
  CLI::App* command =
      add_command(parent, "add", "Register a text or token ids and compute their KV");
  auto options = options_of<AddOptions>(*command, parent);
  command->add_option("TEXT", options->text, "the chunk's text")->check(refuse_no_utf8);
  command->add_option("--file", options->file, "file with the text, - for stdin");
  add_list(*command, "--token-ids", options->token_ids,
           "ids instead of text, as 1,15,7; no template is put around them");
  ChunkContent& chunk = options->chunk;
  add_type(*command, [&chunk](ChunkType type) { chunk.type = type; })->required();
  command->add_option("--anchor", options->anchor,
                      "system chunk behind which a context is computed, or several chunks as "
                      "SYSTEM+PART (the system chunk added last)");
  command->add_flag("--no-anchor", options->no_anchor, "compute the context behind nothing")
      ->excludes("--anchor");
  add_name(*command, options->name, "to call the chunk by");
  command->add_option("--metadata", options->metadata, "KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--ttl", chunk.options.ttl_seconds,
                      "seconds after its last use, then it goes");
  command->add_option("--priority", chunk.options.priority, "lower ones are evicted first");
  command->add_flag("--pin", chunk.options.pinned, "never evict it");
  command->add_option("--chunk-kv-dtype", chunk.options.kv_dtype,
                      "format of the chunk's KV, as int8 (that of --kv-dtype)");
  command->add_option("--keep-hidden", chunk.options.keep_hidden,
                      "layer at which a context keeps hidden states, for --recompute-layers");
  command->callback([&action = parent.action, options] {
    action = [options](ScriptSession& session) { return register_text(session, *options); };
  });
}

struct ListOptions {
  Format format = Format::kText;
  std::optional<ChunkType> type;
};

Status list_chunks(ScriptSession& session, const ListOptions& options) {
  QUIRE_TRY(const auto chunks, session.llm.list_chunks(options.type));
  json::array objects;
  std::string table;
  for (const ChunkInfo& chunk : chunks) {
    objects.push_back(describe_chunk(chunk, false));
    table += chunk.chunk_id.substr(0, kShownDigits) + '\t' + chunk_type_name(chunk.type) + '\t' +
             std::to_string(chunk.token_ids.size()) + '\t' + (chunk.pinned ? "pinned" : "") + '\t' +
             preview(name_of(chunk)) + '\t' + preview(chunk.content) + '\n';
  }
  return options.format == Format::kJson ? print_json(objects) : print(table);
}

void declare_list(const CommandParent& parent) {
  CLI::App* command = add_command(parent, "list", "Id, kind, tokens, name and beginning of chunks");
  auto options = options_of<ListOptions>(*command, parent);
  add_type(*command, [options](ChunkType type) { options->type = type; });
  command->callback([&action = parent.action, options] {
    action = [options](ScriptSession& session) { return list_chunks(session, *options); };
  });
}

Status clear_chunks(ScriptSession& session, const ListOptions& options) {
  QUIRE_TRY(const std::int64_t cleared, session.llm.clear_chunks(options.type));
  return print_value({{"cleared", cleared}}, options.format);
}

void declare_clear(const CommandParent& parent) {
  CLI::App* command = add_command(parent, "clear", "Delete all chunks, or those of a kind");
  auto options = options_of<ListOptions>(*command, parent);
  add_type(*command, [options](ChunkType type) { options->type = type; });
  command->callback([&action = parent.action, options] {
    action = [options](ScriptSession& session) { return clear_chunks(session, *options); };
  });
}

struct UpdateOptions {
  Format format = Format::kText;
  std::string chunk;
  ChunkUpdate update;
};

// Changes a chunk and prints its id, which is another one where its KV was narrowed.
Status update_chunk(ScriptSession& session, const UpdateOptions& options) {
  const ChunkUpdate& update = options.update;
  if (!update.kv_dtype && !update.ttl_seconds && !update.priority) {
    return {ErrorCode::kInvalidArgument, "give one of --chunk-kv-dtype, --ttl and --priority"};
  }
  QUIRE_TRY(const ChunkInfo chunk, find_chunk(session.llm, options.chunk, session.deleted));
  QUIRE_TRY(const ChunkInfo now, session.llm.update_chunk(chunk.chunk_id, update));
  return options.format == Format::kJson ? print_json(describe_chunk(now, false))
                                         : print(now.chunk_id + "\n");
}

void declare_update(const CommandParent& parent) {
  CLI::App* command = add_command(
      parent, "update", "Narrow a chunk's KV, which gives it a new id, or change how it is kept");
  auto options = options_of<UpdateOptions>(*command, parent);
  ChunkUpdate& update = options->update;
  command->add_option("CHUNK", options->chunk, kChunkHelp)->required();
  command->add_option("--chunk-kv-dtype", update.kv_dtype,
                      "format that the chunk's KV is stored in again, as int4; one of fewer bits");
  command->add_option_function<double>(
      "--ttl", [&update](double seconds) { update.ttl_seconds = std::optional(seconds); },
      "seconds after its last use, then it goes");
  command->add_option("--priority", update.priority, "lower ones are evicted first");
  command->callback([&action = parent.action, options] {
    action = [options](ScriptSession& session) { return update_chunk(session, *options); };
  });
}

struct OneOptions {
  Format format = Format::kText;
  std::string chunk;
  bool off = false;
};

Status show_one(ScriptSession& session, const OneOptions& options) {
  QUIRE_TRY(const ChunkInfo chunk, find_chunk(session.llm, options.chunk, session.deleted));
  return print_value(describe_chunk(chunk, true), options.format);
}

Status pin_chunk(ScriptSession& session, const OneOptions& options) {
  QUIRE_TRY(const ChunkInfo chunk, find_chunk(session.llm, options.chunk, session.deleted));
  QUIRE_TRY(const ChunkInfo now,
            session.llm.update_chunk(chunk.chunk_id, {.pinned = !options.off}));
  return confirm(describe_chunk(now, false), options.format);
}

Status delete_chunk(ScriptSession& session, const OneOptions& options) {
  QUIRE_TRY(const ChunkInfo chunk, find_chunk(session.llm, options.chunk, session.deleted));
  QUIRE_TRY(const bool deleted, session.llm.delete_chunk(chunk.chunk_id));
  session.deleted.insert(name_of(chunk));
  return confirm({{"chunk_id", chunk.chunk_id}, {"deleted", deleted}}, options.format);
}

// Declares a command on one chunk.
void declare_one(const CommandParent& parent, const char* name, const char* help,
                 Status (*work)(ScriptSession&, const OneOptions&)) {
  CLI::App* command = add_command(parent, name, help);
  auto options = options_of<OneOptions>(*command, parent);
  command->add_option("CHUNK", options->chunk, kChunkHelp)->required();
  if (work == &pin_chunk) {
    command->add_flag("--off", options->off, "let it be evicted again");
  }
  command->callback([&action = parent.action, options, work] {
    action = [options, work](ScriptSession& session) { return work(session, *options); };
  });
}

struct AskOptions {
  Format format = Format::kText;
  ComposeOptions composing;
  SamplingParams sampling;
  RequestOptions request;
};

Status compose_chunks(ScriptSession& session, const AskOptions& options) {
  QUIRE_TRY(const Resolved composed, resolve(session.llm, options.composing, session.deleted));
  QUIRE_TRY(const CompositionInfo info, session.llm.preview_composition(composed.spec));
  return print_value(describe_chunk(info), options.format);
}

Status ask_chunks(ScriptSession& session, const AskOptions& options) {
  QUIRE_TRY_STATUS(options.sampling.validate());
  QUIRE_TRY_STATUS(check_logprobs(options.sampling, options.format));
  QUIRE_TRY(const Resolved composed, resolve(session.llm, options.composing, session.deleted));
  ComputeProgress progress(session.llm.llm(), expected_tokens(session.llm, composed));
  auto stream =
      session.llm.stream_from_chunks(composed.spec, options.sampling, {}, options.request);
  if (!stream.ok()) {
    if (composed.adds_query) {  // a refused request leaves nothing
      QUIRE_TRY([[maybe_unused]] const bool deleted,
                session.llm.delete_chunk(composed.spec.query_chunk_id));
    }
    return stream.error();
  }
  session.interrupts.arm();
  const bool streaming = options.format == Format::kText;
  const auto generation = follow(
      session.llm.llm(), std::move(stream).value(), session.interrupts,
      [streaming](std::string_view delta) { return streaming ? print(delta) : Status(); },
      progress);
  session.interrupts.disarm();
  QUIRE_TRY(const Generation done, generation);
  session.interrupted = done.interrupted;
  if (streaming) {
    return print("\n");
  }
  QUIRE_TRY(const std::string text, to_json(done.output));
  return print(text + "\n");
}

void declare_compose(const CommandParent& parent) {
  CLI::App* command = add_command(parent, "compose", "Show what running these chunks would do");
  auto options = options_of<AskOptions>(*command, parent);
  command->add_option("CHUNK", options->composing.chunks, kChunkHelp)->required();
  add_composing_options(*command, options->composing.spec);
  command->callback([&action = parent.action, options] {
    action = [options](ScriptSession& session) { return compose_chunks(session, *options); };
  });
}

void declare_run(const CommandParent& parent) {
  CLI::App* command = add_command(parent, "run", "Answer the query behind the contexts");
  auto options = options_of<AskOptions>(*command, parent);
  command->add_option("QUERY", options->composing.query,
                      "text, unless one of the chunks is a query");
  add_chunk_option(*command, options->composing.chunks)->required();
  add_composing_options(*command, options->composing.spec);
  add_sampling_options(*command, options->sampling);
  add_urgency_options(*command, options->request);
  command->callback([&action = parent.action, options] {
    action = [options](ScriptSession& session) { return ask_chunks(session, *options); };
  });
}

void declare_chunk_commands(const CommandParent& parent) {
  parent.app.require_subcommand(1);
  declare_add(parent);
  declare_list(parent);
  declare_one(parent, "show", "All about one chunk", &show_one);
  declare_one(parent, "pin", "Never evict a chunk", &pin_chunk);
  declare_update(parent);
  declare_one(parent, "rm", "Delete a chunk", &delete_chunk);
  declare_clear(parent);
}

}  // namespace

Result<ScriptAction> parse_command(const std::string& line, Format format) {
  QUIRE_TRY(std::vector<std::string> words, split_words(line));
  CLI::App app("Commands on chunks", "");
  app.require_subcommand(1);
  ScriptAction action;
  const CommandParent parent{.app = app, .format = format, .action = action};
  declare_chunk_commands({.app = *app.add_subcommand("chunk", "Register, list and delete chunks"),
                          .format = format,
                          .action = action});
  declare_compose(parent);
  declare_run(parent);
  refuse_no_numbers(app);
  QUIRE_TRY(std::string help, parse_words(app, std::move(words)));
  if (!help.empty()) {
    return ScriptAction([text = std::move(help)](ScriptSession&) { return print(text); });
  }
  return action;
}

void declare_stored_chunk(CLI::App& app, std::string& model, ScriptAction& action) {
  declare_chunk_commands({.app = app, .action = action, .model = &model});
}

void declare_stored_compose(CLI::App& app, std::string& model, ScriptAction& action) {
  declare_compose({.app = app, .action = action, .model = &model});
}

}  // namespace quire::cli
