#include "api/messages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/prompts.h"
#include "engine.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr FieldRule kFunctionRules[] = {
    {.name = "name", .kinds = kString, .help = "name of the function", .required = true},
    {.name = "arguments", .kinds = kString, .help = "a JSON object as text", .required = true},
};
const FieldTable& function_table() {
  static const FieldTable table{"CalledFunction", "A function that was called.", {kFunctionRules}};
  return table;
}

const FieldTable& tool_call_table() {
  static const FieldRule rules[] = {
      {.name = "id", .kinds = kString, .help = "id of the call", .required = true},
      {.name = "type", .kinds = kString, .help = "function", .words = "function"},
      {.name = "function",
       .kinds = kObject,
       .help = "what was called",
       .required = true,
       .members = &function_table()},
      {.name = "index", .kinds = kInteger, .effect = Effect::kIgnored},
  };
  static const FieldTable table{"ToolCall", "A call that the model has asked for.", {rules}};
  return table;
}

std::span<const FieldRule> message_rules() {
  static const FieldRule rules[] = {
      {.name = "role",
       .kinds = kString,
       .help = "who speaks; developer is system",
       .required = true,
       .words = "system|developer|user|assistant|tool"},
      {.name = "content",
       .kinds = kString | kArray,
       .help = "a text, or parts: text, refusal, chunk",
       .elements = kObject},
      {.name = "name", .kinds = kString, .help = "given to the template", .max_size = 256},
      {.name = "tool_calls",
       .kinds = kArray,
       .help = "of an assistant",
       .max_size = 128,
       .members = &tool_call_table(),
       .elements = kObject},
      {.name = "tool_call_id", .kinds = kString, .help = "of a tool: the call that it answers"},
      {.name = "refusal", .kinds = kString, .help = "of an assistant: read as its text"},
      {.name = "reasoning_content", .kinds = kString, .effect = Effect::kIgnored},
      {.name = "annotations", .kinds = kArray, .effect = Effect::kIgnored},
      {.name = "audio", .kinds = kObject, .effect = Effect::kRefused},
      {.name = "function_call", .kinds = kObject, .effect = Effect::kRefused},
  };
  return rules;
}

constexpr FieldRule kBreakpointRules[] = {
    {.name = "mode", .kinds = kString, .help = "explicit", .words = "explicit"},
};
const FieldTable& breakpoint_table() {
  static const FieldTable table{
      "CacheBreakpoint", "Holds the prompt up to here.", {kBreakpointRules}};
  return table;
}

const FieldTable& text_part_table() {
  static const FieldRule rules[] = {
      {.name = "type", .kinds = kString, .required = true},
      {.name = "text", .kinds = kString, .help = "the text", .required = true},
      {.name = "prompt_cache_breakpoint",
       .kinds = kObject,
       .help = "holds the prompt up to here",
       .members = &breakpoint_table()},
  };
  static const FieldTable table{"TextPart", "A text.", {rules}};
  return table;
}
constexpr FieldRule kRefusalPartRules[] = {
    {.name = "type", .kinds = kString, .required = true},
    {.name = "refusal", .kinds = kString, .help = "the text", .required = true},
};
const FieldTable& refusal_part_table() {
  static const FieldTable table{"RefusalPart", "A refusal.", {kRefusalPartRules}};
  return table;
}
constexpr FieldRule kChunkPartRules[] = {
    {.name = "type", .kinds = kString, .required = true},
    {.name = "chunk_id",
     .kinds = kString,
     .help = "64 hexadecimal digits",
     .required = true,
     .min_size = 64,
     .max_size = 64},
};
const FieldTable& chunk_part_table() {
  static const FieldTable table{"ChunkPart", "A registered chunk.", {kChunkPartRules}};
  return table;
}

Checked<MessagePart> read_part(const json::object& given, std::string_view role,
                               const std::string& path, FieldNotes& notes) {
  const Members members(given);
  const auto type = members.text("type");
  if (!type) {
    return missing(member_path(path, "type"));
  }
  json::object part = given;
  if (*type == "text") {
    QUIRE_TRY_STATUS(check_fields(text_part_table(), part, path, notes));
    return MessagePart{.type = "text",
                       .text = std::string(Members(part).text("text").value_or("")),
                       .breakpoint = Members(part).has("prompt_cache_breakpoint")};
  }
  if (*type == "chunk") {
    QUIRE_TRY_STATUS(check_fields(chunk_part_table(), part, path, notes));
    return MessagePart{.type = "chunk",
                       .chunk_id = std::string(Members(part).text("chunk_id").value_or(""))};
  }
  if (*type == "refusal" && role == "assistant") {
    QUIRE_TRY_STATUS(check_fields(refusal_part_table(), part, path, notes));
    return MessagePart{.type = "text",
                       .text = std::string(Members(part).text("refusal").value_or(""))};
  }
  return unsupported(member_path(path, "type"), "parts of type " + std::string(*type) +
                                                    " are not supported, text and chunk are");
}

Checked<std::vector<ToolCall>> read_calls(const json::array& list, const std::string& path) {
  std::vector<ToolCall> calls;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Members call(list[i].get_object());
    const Members function(*call.object("function"));
    const std::string place = member_path(element_path(path, i), "function.arguments");
    ToolCall made{.id = std::string(call.text("id").value_or("")),
                  .name = std::string(function.text("name").value_or("")),
                  .arguments_json = std::string(function.text("arguments").value_or(""))};
    if (made.arguments_json.empty()) {
      made.arguments_json = "{}";
    }
    const auto arguments = read_json(made.arguments_json);
    if (!arguments.ok() || !arguments->is_object()) {
      return invalid(place, "must be a JSON object");
    }
    calls.push_back(std::move(made));
  }
  return calls;
}

Checked<Message> read_message(const json::object& given, const std::string& path,
                              FieldNotes& notes) {
  const Members members(given);
  Message message{.role = std::string(members.text("role").value_or(""))};
  if (message.role == "developer") {
    message.role = "system";
  }
  message.name = std::string(members.text("name").value_or(""));
  const bool assistant = message.role == "assistant";
  if (const json::array* const calls = members.array("tool_calls")) {
    if (!assistant) {
      return invalid(member_path(path, "tool_calls"), "only an assistant calls tools");
    }
    QUIRE_TRY(message.tool_calls, read_calls(*calls, member_path(path, "tool_calls")));
  }
  const std::string place = member_path(path, "content");
  if (const auto text = members.text("content")) {
    message.parts.push_back({.type = "text", .text = std::string(*text)});
  } else if (const json::array* const parts = members.array("content")) {
    if (parts->empty()) {
      return invalid(place, "has no part");
    }
    for (std::size_t i = 0; i < parts->size(); ++i) {
      QUIRE_TRY(MessagePart part,
                read_part((*parts)[i].get_object(), message.role, element_path(place, i), notes));
      message.parts.push_back(std::move(part));
    }
  } else if (const auto refusal = members.text("refusal"); refusal && assistant) {
    message.parts.push_back({.type = "text", .text = std::string(*refusal)});
  } else if (!assistant || message.tool_calls.empty()) {
    return missing(place);
  }
  if (message.role == "tool") {
    const auto id = members.text("tool_call_id");
    if (!id) {
      return missing(member_path(path, "tool_call_id"));
    }
    message.tool_call_id = std::string(*id);
  }
  return message;
}

std::vector<ChatMessage> chat_messages(const std::vector<Message>& messages, bool with_names) {
  std::vector<ChatMessage> made;
  made.reserve(messages.size());
  for (const Message& message : messages) {
    made.push_back({.role = message.role,
                    .content = message.text(),
                    .name = with_names ? message.name : std::string(),
                    .tool_calls = message.tool_calls,
                    .tool_call_id = message.tool_call_id});
  }
  return made;
}

// Returns what a client is told when the template has failed.
ApiError template_error(const Error& error, const std::string& path) {
  ApiError made = api_error(error, path);
  if (error.code == ErrorCode::kInvalidArgument) {
    made.code = "template_error";
  }
  return made;
}

ApiError tools_unsupported(std::string path) {
  ApiError error =
      unsupported(std::move(path), "the chat template of this model does not read tools");
  error.code = "tools_unsupported";
  return error;
}

Check check_variables(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  const bool has_tools = prompt.variables.contains("tools");
  const auto read = tokenizer.template_variables(has_tools);
  const auto reads = [&](const char* name) { return std::ranges::find(read, name) != read.end(); };
  if (prompt.variables.contains("documents") && !reads("documents")) {
    return unsupported("documents", "the chat template of this model does not read documents");
  }
  if (reads("tools")) {
    return passed();
  }
  if (has_tools) {
    return tools_unsupported("tools");
  }
  for (std::size_t i = 0; i < prompt.messages.size(); ++i) {
    const Message& message = prompt.messages[i];
    if (!message.tool_calls.empty() || message.role == "tool") {
      const std::string place = element_path(prompt.path, i);
      return tools_unsupported(member_path(place, message.role == "tool" ? "role" : "tool_calls"));
    }
  }
  return passed();
}

struct Rendering {
  Tokenizer tokenizer;
  std::vector<ChatMessage> messages;
  std::string variables;
};

Checked<Rendering> prepare(const Engine& engine, const ChatPrompt& prompt) {
  QUIRE_TRY(Tokenizer tokenizer, engine.tokenizer());
  if (!tokenizer.has_chat_template()) {
    ApiError error = unsupported(prompt.path, "this model has no chat template");
    error.code = "template_error";
    return error;
  }
  QUIRE_TRY_STATUS(check_variables(tokenizer, prompt));
  return Rendering{std::move(tokenizer), chat_messages(prompt.messages, true),
                   json::serialize(prompt.variables)};
}

std::string_view trimmed_view(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Drops the ids that the template has put behind the last message.
Check cut_behind_last(const Rendering& rendering, const std::string& path,
                      const Interrupt& interrupted, std::vector<TokenId>& ids) {
  auto text = rendering.tokenizer.render_chat_template(rendering.messages, false,
                                                       rendering.variables, interrupted);
  if (!text.ok()) {
    return template_error(text.error(), path);
  }
  const std::string_view content = trimmed_view(rendering.messages.back().content);
  const std::size_t at = text->rfind(content);
  std::string tail;
  std::size_t kept = ids.size();
  const std::string suffix =
      at == std::string::npos ? std::string() : text->substr(at + content.size());
  while (at != std::string::npos && kept > 0 && tail.size() < suffix.size()) {
    --kept;
    QUIRE_TRY(tail, rendering.tokenizer.decode(std::span(ids).subspan(kept), false, interrupted));
  }
  if (at == std::string::npos || tail != suffix) {
    ApiError error = unsupported("continue_final_message",
                                 "the chat template does not repeat the last message as it is");
    error.code = "template_error";
    return error;
  }
  ids.resize(kept);
  return passed();
}

// Returns the messages up to the end of the last part with a breakpoint; none without one.
std::vector<Message> up_to_breakpoint(const std::vector<Message>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    for (std::size_t k = messages[i].parts.size(); k-- > 0;) {
      if (messages[i].parts[k].breakpoint) {
        std::vector<Message> kept(messages.begin(),
                                  messages.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        kept.back().parts.resize(k + 1);
        return kept;
      }
    }
  }
  return {};
}

// Returns how far a prompt begins as the one that ends at its last breakpoint.
Checked<std::optional<std::int64_t>> tokens_to_breakpoint(const Rendering& rendering,
                                                          const ChatPrompt& prompt,
                                                          const Interrupt& interrupted,
                                                          const std::vector<TokenId>& ids) {
  const std::vector<Message> kept = up_to_breakpoint(prompt.messages);
  if (kept.empty()) {
    return std::optional<std::int64_t>();
  }
  const auto begin = rendering.tokenizer.apply_chat_template(chat_messages(kept, true), false,
                                                             rendering.variables, interrupted);
  if (!begin.ok()) {
    return template_error(begin.error(), prompt.path);
  }
  const auto differs = std::ranges::mismatch(*begin, ids);
  return std::optional<std::int64_t>(differs.in1 - begin->begin());
}

std::size_t bytes_of(const ChatPrompt& prompt) {
  std::size_t bytes = 0;
  for (const Message& message : prompt.messages) {
    for (const MessagePart& part : message.parts) {
      bytes += part.text.size();
    }
  }
  return bytes;
}

}  // namespace

bool Message::has_chunk() const {
  return std::ranges::any_of(parts, [](const MessagePart& part) { return part.type == "chunk"; });
}

std::string Message::text() const {
  std::string joined;
  bool first = true;
  for (const MessagePart& part : parts) {
    joined += first ? "" : "\n";
    joined += part.text;
    first = false;
  }
  return joined;
}

void note_names(const ChatPrompt& prompt, FieldNotes& notes) {
  for (std::size_t i = 0; i < prompt.messages.size(); ++i) {
    if (!prompt.messages[i].name.empty()) {
      notes.ignore(member_path(element_path(prompt.path, i), "name"));
    }
  }
}

const FieldTable& message_table() {
  static const FieldTable table{"ChatMessage", "A message of a chat.", {message_rules()}};
  return table;
}

Checked<std::vector<Message>> read_messages(const json::array& list, std::string_view path,
                                            FieldNotes& notes) {
  std::vector<Message> messages;
  std::set<std::string> calls;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = element_path(path, i);
    QUIRE_TRY(Message message, read_message(list[i].get_object(), place, notes));
    if (!messages.empty() && message.role == "assistant" && messages.back().role == "assistant") {
      return invalid(member_path(place, "role"), "two messages of the assistant in a row");
    }
    if (message.role == "tool" && !calls.contains(message.tool_call_id)) {
      return invalid(member_path(place, "tool_call_id"), "no call before it has this id");
    }
    for (const ToolCall& call : message.tool_calls) {
      calls.insert(call.id);
    }
    messages.push_back(std::move(message));
  }
  constexpr std::ptrdiff_t kMaxBreakpoints = 4;
  std::ptrdiff_t breakpoints = 0;
  for (const Message& message : messages) {
    breakpoints += std::ranges::count_if(message.parts, &MessagePart::breakpoint);
  }
  if (breakpoints > kMaxBreakpoints) {
    return invalid(std::string(path), "has " + std::to_string(breakpoints) +
                                          " prompt_cache_breakpoint, at most 4 are allowed");
  }
  if (messages.empty()) {
    return invalid(std::string(path), "has no message");
  }
  return messages;
}

Checked<EncodedChat> encode_chat(const Engine& engine, const ChatPrompt& prompt,
                                 const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(check_bytes(engine, bytes_of(prompt), prompt.path));
  QUIRE_TRY(const Rendering rendering, prepare(engine, prompt));
  const bool opens = prompt.add_generation_prompt && !prompt.continue_final_message;
  auto ids = rendering.tokenizer.apply_chat_template(rendering.messages, opens, rendering.variables,
                                                     interrupted);
  if (!ids.ok()) {
    return template_error(ids.error(), prompt.path);
  }
  EncodedChat encoded{.ids = std::move(ids).value()};
  if (std::ranges::any_of(prompt.messages, [](const Message& m) { return !m.name.empty(); })) {
    const auto unnamed = rendering.tokenizer.apply_chat_template(
        chat_messages(prompt.messages, false), opens, rendering.variables, interrupted);
    encoded.reads_names = !unnamed.ok() || *unnamed != encoded.ids;
  }
  if (prompt.continue_final_message) {
    QUIRE_TRY_STATUS(cut_behind_last(rendering, prompt.path, interrupted, encoded.ids));
  }
  QUIRE_TRY(encoded.breakpoint_tokens,
            tokens_to_breakpoint(rendering, prompt, interrupted, encoded.ids));
  if (encoded.ids.empty()) {
    return invalid(prompt.path, "the prompt has no token");
  }
  return encoded;
}

Checked<std::string> render_chat(const Engine& engine, const ChatPrompt& prompt,
                                 const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(check_bytes(engine, bytes_of(prompt), prompt.path));
  QUIRE_TRY(const Rendering rendering, prepare(engine, prompt));
  auto text = rendering.tokenizer.render_chat_template(
      rendering.messages, prompt.add_generation_prompt, rendering.variables, interrupted);
  if (!text.ok()) {
    return template_error(text.error(), prompt.path);
  }
  return std::move(text).value();
}

}  // namespace quire::server
