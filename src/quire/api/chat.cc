#include "quire/chat.h"

#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/json_values.h"
#include "quire/result.h"

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

}  // namespace quire
