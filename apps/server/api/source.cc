#include "api/source.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "api/errors.h"
#include "api/extension.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/messages.h"
#include "api/prompts.h"
#include "api/sampling.h"
#include "engine.h"
#include "quire/chunks.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

Checked<EncodedSource> encode_composition(Engine& engine, CompositionSpec spec,
                                          const std::string& path, const std::string& salt) {
  QUIRE_TRY(ChunkedLLM* const chunks, chunk_registry(engine));
  spec.salt = salt;
  const auto composition = chunks->compose(spec);
  if (!composition.ok()) {
    return composition_error(composition.error(), spec, path);
  }
  return EncodedSource{std::move(spec), composition->info().total_tokens};
}

EncodedSource encoded_ids(std::vector<TokenId> ids) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  return {std::move(ids), tokens};
}

}  // namespace

std::span<const FieldRule> source_rules() {
  static const FieldRule rules[] = {
      {.name = "prompt",
       .kinds = kString | kArray,
       .help = "a text, or token ids",
       .min_size = 1,
       .elements = kInteger},
      {.name = "messages",
       .kinds = kArray,
       .help = "a chat",
       .min_size = 1,
       .max_size = 65536,
       .members = &message_table(),
       .elements = kObject},
      {.name = "variables", .kinds = kObject, .help = "further variables of the chat template"},
      {.name = "composition",
       .kinds = kObject,
       .help = "registered chunks",
       .members = &composition_table()},
  };
  return rules;
}

Checked<PromptSource> read_source(const Engine& engine, const json::object& object,
                                  std::string_view path, FieldNotes& notes) {
  const Members members(object);
  const int given =
      int{members.has("prompt")} + int{members.has("messages")} + int{members.has("composition")};
  if (given != 1) {
    const std::string place = member_path(path, "prompt");
    return given == 0 ? missing(place)
                      : invalid(place, "prompt, messages and composition exclude one another");
  }
  if (members.has("variables") && !members.has("messages")) {
    return invalid(member_path(path, "variables"), "needs messages");
  }
  PromptSource source;
  if (const json::value* const prompt = members.value("prompt")) {
    source.path = member_path(path, "prompt");
    if (prompt->is_string()) {
      source.prompt = std::string(view_of(prompt->get_string()));
      return source;
    }
    QUIRE_TRY(source.prompt, read_ids(prompt->get_array(), source.path, engine.facts().vocab_size));
    return source;
  }
  if (const json::object* const composition = members.object("composition")) {
    source.path = member_path(path, "composition");
    QUIRE_TRY(source.prompt, read_composition(*composition, source.path));
    return source;
  }
  ChatPrompt chat{.path = member_path(path, "messages")};
  source.path = chat.path;
  QUIRE_TRY(chat.messages, read_messages(*members.array("messages"), chat.path, notes));
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].has_chunk()) {
      ApiError error = invalid(element_path(chat.path, i), "chunks stand in composition here");
      error.code = "invalid_composition";
      return error;
    }
  }
  if (const json::object* const variables = members.object("variables")) {
    chat.variables = *variables;
    for (const char* const name : {"messages", "tools"}) {
      if (chat.variables.contains(name)) {
        return unsupported(member_path(member_path(path, "variables"), name), "not supported");
      }
    }
  }
  source.prompt = std::move(chat);
  return source;
}

Checked<EncodedSource> encode_source(Engine& engine, PromptSource source, const std::string& salt,
                                     const Interrupt& interrupted) {
  if (auto* const ids = std::get_if<std::vector<TokenId>>(&source.prompt)) {
    return encoded_ids(std::move(*ids));
  }
  if (auto* const spec = std::get_if<CompositionSpec>(&source.prompt)) {
    return encode_composition(engine, std::move(*spec), source.path, salt);
  }
  if (const auto* const text = std::get_if<std::string>(&source.prompt)) {
    QUIRE_TRY(auto ids, encode_text(engine, *text, true, source.path, interrupted));
    return encoded_ids(std::move(ids));
  }
  QUIRE_TRY(auto chat, encode_chat(engine, std::get<ChatPrompt>(source.prompt), interrupted));
  return encoded_ids(std::move(chat.ids));
}

ApiError composition_error(const Error& error, const CompositionSpec& spec, std::string_view path) {
  std::string place(path);
  if (error.code == ErrorCode::kNotFound && !error.chunk_id.empty()) {
    if (error.chunk_id == spec.system_chunk_id) {
      place = member_path(path, "system_chunk_id");
    } else if (error.chunk_id == spec.query_chunk_id) {
      place = member_path(path, "query_chunk_id");
    }
    for (std::size_t i = 0; i < spec.context_chunk_ids.size(); ++i) {
      if (spec.context_chunk_ids[i] == error.chunk_id) {
        place = element_path(member_path(path, "context_chunk_ids"), i);
        break;
      }
    }
  }
  ApiError made = api_error(error, std::move(place));
  if (error.code == ErrorCode::kNotFound) {
    made.code = "chunk_not_found";
    made.message = error.message;
  }
  if (error.code == ErrorCode::kOverflow) {
    made.code = "context_length_exceeded";
  }
  return made;
}

Checked<ChunkedLLM*> chunk_registry(Engine& engine) {
  if (engine.chunks() == nullptr) {
    return unsupported("", "this engine has no chunks");
  }
  return engine.chunks();
}

}  // namespace quire::server
