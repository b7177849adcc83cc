#include "quire/chat.h"

#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/answer.h"
#include "quire/api/llm_impl.h"  // IWYU pragma: keep (LLM::Impl)
#include "quire/api/stream_impl.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/json_values.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/tokenizer.h"

namespace quire {
namespace {

using base::Json;
using engine::json_of;

void set_unless_empty(Json& object, std::string_view name, const std::string& value) {
  if (!value.empty()) {
    object.set(name, json_of(value));
  }
}

Result<Json> call_object(const ToolCall& call) {
  QUIRE_TRY(Json arguments, base::parse_json(call.arguments_json, "arguments of a tool call"));
  if (!arguments.view().is_object()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("arguments of the tool call ", base::quoted(call.name),
                          " must be a JSON object")};
  }
  Json object = Json::object();
  set_unless_empty(object, "id", call.id);
  object.set("type", "function");
  object.set("function",
             Json::object({{"name", json_of(call.name)}, {"arguments", std::move(arguments)}}));
  return object;
}

Result<Json> message_object(const ChatMessage& message) {
  Json object =
      Json::object({{"role", json_of(message.role)}, {"content", json_of(message.content)}});
  set_unless_empty(object, "name", message.name);
  if (!message.tool_calls.empty()) {
    Json calls = Json::array();
    for (const ToolCall& call : message.tool_calls) {
      QUIRE_TRY(Json made, call_object(call));
      calls.push(std::move(made));
    }
    object.set("tool_calls", std::move(calls));
  }
  set_unless_empty(object, "tool_call_id", message.tool_call_id);
  return object;
}

// Returns the list "tools" of template variables, which a template has taken, as JSON.
std::string tools_of(std::string_view variables_json) {
  const auto variables = base::parse_json(variables_json, "template variables");
  const base::JsonView tools = variables.ok() ? variables->view().find("tools") : base::JsonView();
  return tools.is_array() ? base::write_json(tools) : "";
}

}  // namespace

Result<std::string> to_json(std::span<const ChatMessage> messages) try {
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    QUIRE_TRY(Json object, message_object(message));
    list.push(std::move(object));
  }
  return base::write_json(list);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of messages");
}

Result<GenerationOutput> LLM::chat(std::string_view messages_json, const SamplingParams& params,
                                   std::string_view variables_json,
                                   const RequestOptions& options) try {
  QUIRE_TRY(const auto tokens, tokenizer());
  QUIRE_TRY(auto ids, tokens.apply_chat_template(messages_json, true, variables_json));
  QUIRE_TRY(auto output, generate(std::move(ids), params, options));
  QUIRE_TRY_STATUS(split_answer(tokens, tools_of(variables_json), output));
  return output;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Stream> LLM::stream_chat(std::string_view messages_json, const SamplingParams& params,
                                std::string_view variables_json,
                                const RequestOptions& options) try {
  QUIRE_TRY(const auto tokens, tokenizer());
  QUIRE_TRY(auto ids, tokens.apply_chat_template(messages_json, true, variables_json));
  QUIRE_TRY(auto parser, tokens.answer_parser(ids, tools_of(variables_json)));
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(auto started, start_stream(engine, std::move(ids), params, options));
  started->parser = std::move(parser);
  return Stream(std::move(started));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<GenerationOutput> LLM::chat(std::span<const ChatMessage> messages,
                                   const SamplingParams& params, std::string_view variables_json,
                                   const RequestOptions& options) {
  QUIRE_TRY(const std::string json, to_json(messages));
  return chat(json, params, variables_json, options);
}

Result<Stream> LLM::stream_chat(std::span<const ChatMessage> messages, const SamplingParams& params,
                                std::string_view variables_json, const RequestOptions& options) {
  QUIRE_TRY(const std::string json, to_json(messages));
  return stream_chat(json, params, variables_json, options);
}

}  // namespace quire
