#include "quire/text/answer/calls.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/chat.h"
#include "quire/text/answer/loose_values.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {
namespace {

using Calls = std::optional<std::vector<ToolCall>>;

// Walks over JSON without reading it: tells where texts and brackets end.
class JsonWalk {
 public:
  // Returns true behind the bracket that closes the first one.
  bool step(char c) {
    if (in_text_) {
      in_text_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return false;
    }
    in_text_ = c == '"';
    depth_ += c == '{' || c == '[' ? 1 : 0;
    depth_ -= c == '}' || c == ']' ? 1 : 0;
    return depth_ == 0 && (c == '}' || c == ']');
  }
  [[nodiscard]] bool in_text() const { return in_text_; }

 private:
  bool in_text_ = false, escaped_ = false;
  std::ptrdiff_t depth_ = 0;
};

// Drops a JSON object or list at the beginning of a text, and returns it. Returns "" for a text
// that begins otherwise or that ends within.
std::string_view take_json(std::string_view& text) {
  if (!text.starts_with('{') && !text.starts_with('[')) {
    return {};
  }
  JsonWalk walk;
  const auto last = std::ranges::find_if(text, [&](char c) { return walk.step(c); });
  if (last == text.end()) {
    return {};
  }
  const std::string_view json = text.substr(0, static_cast<std::size_t>(last - text.begin()) + 1);
  text.remove_prefix(json.size());
  return json;
}

// Returns the arguments of a call: a JSON object, or its text as some models write it.
std::optional<std::string> arguments_of(base::JsonView call) {
  base::JsonView arguments = call.find("arguments");
  if (arguments.is_null()) {
    arguments = call.find("parameters");
  }
  if (arguments.is_null()) {
    return "{}";
  }
  if (arguments.is_string()) {
    return parse_arguments(arguments.as_string());
  }
  return arguments.is_object() ? std::optional(base::write_json(arguments)) : std::nullopt;
}

bool append_call(base::JsonView call, std::vector<ToolCall>& calls) {
  const base::JsonView name = call.find("name");
  auto arguments = arguments_of(call);
  if (!name.is_string() || name.as_string().empty() || !arguments) {
    return false;
  }
  const base::JsonView id = call.find("id");
  calls.push_back({.id = std::string(id.is_string() ? id.as_string() : std::string_view()),
                   .name = std::string(name.as_string()),
                   .arguments_json = *std::move(arguments)});
  return true;
}

// Reads objects and lists of objects, with ";" or "," between them.
Calls json_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    if (!calls.empty() && (skip(text, ";") || skip(text, ","))) {
      text = trimmed(text);
    }
    const auto json = base::parse_json(take_json(text), "call");
    if (!json.ok()) {
      return std::nullopt;
    }
    const base::JsonView value = json->view();
    const bool read =
        value.is_array()
            ? std::ranges::all_of(value.elements(),
                                  [&](base::JsonView call) { return append_call(call, calls); })
            : append_call(value, calls);
    if (!read) {
      return std::nullopt;
    }
  }
  return calls;
}

// Reads `name(key=value, ...)`.
std::optional<ToolCall> python_call(LooseReader& reader, std::string_view suffix) {
  auto name = reader.name();
  if (name && name->ends_with(suffix)) {
    name->resize(name->size() - suffix.size());
  } else {
    return std::nullopt;
  }
  if (name->empty() || !reader.skip("(")) {
    return std::nullopt;
  }
  auto arguments = reader.members('=', ')');
  if (!arguments) {
    return std::nullopt;
  }
  return ToolCall{.name = *std::move(name), .arguments_json = *std::move(arguments)};
}

Calls llama_calls(std::string_view text) {
  if (Calls calls = json_calls(text)) {
    return calls;
  }
  LooseReader reader(text, "");
  auto call = python_call(reader, ".call");
  return call && reader.at_end() ? Calls({*std::move(call)}) : std::nullopt;
}

Calls python_calls(std::string_view text) {
  LooseReader reader(text, "");
  const bool listed = reader.skip("[");
  std::vector<ToolCall> calls;
  do {
    auto call = python_call(reader, "");
    if (!call) {
      return std::nullopt;
    }
    calls.push_back(*std::move(call));
  } while (reader.skip(","));
  return (!listed || reader.skip("]")) && reader.at_end() ? Calls(std::move(calls)) : std::nullopt;
}

Calls mistral_calls(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('[')) {
    return json_calls(text);
  }
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("[{"), text.size());
    ToolCall call{.name = std::string(trimmed(text.substr(0, end)))};
    text.remove_prefix(end);
    if (skip(text, "[CALL_ID]")) {
      const std::size_t behind = std::min(text.find_first_of("[{"), text.size());
      call.id = std::string(trimmed(text.substr(0, behind)));
      text.remove_prefix(behind);
    }
    static_cast<void>(skip(text, "[ARGS]"));
    text = trimmed(text);
    auto arguments = parse_arguments(take_json(text));
    if (call.name.empty() || !arguments) {
      return std::nullopt;
    }
    call.arguments_json = *std::move(arguments);
    calls.push_back(std::move(call));
    text = trimmed(text);
    static_cast<void>(skip(text, "[TOOL_CALLS]"));
  }
  return calls;
}

// Returns a value without the line breaks that templates write around it.
std::string_view without_breaks(std::string_view value) {
  static_cast<void>(skip(value, "\n"));
  value.remove_suffix(value.ends_with('\n') ? 1 : 0);
  return value;
}

Calls xml_calls(std::string_view text, const ToolSchemas& schemas) {
  std::vector<ToolCall> calls;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    if (!skip(text, "<function=") || text.find('>') == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string name(trimmed(take_until(text, ">")));
    base::Json arguments = base::Json::object();
    while (!skip(text = trimmed(text), "</function>")) {
      if (!skip(text, "<parameter=") || text.find("</parameter>") == std::string_view::npos) {
        return std::nullopt;
      }
      std::string_view parameter = take_until(text, "</parameter>");
      const std::string_view key = trimmed(take_until(parameter, ">"));
      arguments.set(key, schemas.value(name, key, without_breaks(parameter)));
    }
    if (name.empty()) {
      return std::nullopt;
    }
    calls.push_back({.name = name, .arguments_json = base::write_json(arguments)});
  }
  return calls;
}

Calls glm_calls(std::string_view text, const ToolSchemas& schemas) {
  const std::string name(trimmed(text.substr(0, text.find("<arg_key>"))));
  text.remove_prefix(std::min(text.find("<arg_key>"), text.size()));
  base::Json arguments = base::Json::object();
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    if (!skip(text, "<arg_key>") || text.find("</arg_key>") == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view key = trimmed(take_until(text, "</arg_key>"));
    text = trimmed(text);
    if (!skip(text, "<arg_value>") || text.find("</arg_value>") == std::string_view::npos) {
      return std::nullopt;
    }
    arguments.set(key, schemas.value(name, key, take_until(text, "</arg_value>")));
  }
  if (name.empty() || name.find_first_of("{}<>\n") != std::string::npos) {
    return std::nullopt;
  }
  return Calls({{.name = name, .arguments_json = base::write_json(arguments)}});
}

Calls gemma_calls(std::string_view text) {
  LooseReader reader(text, "<|\"|>");
  if (!reader.skip("call:")) {
    return std::nullopt;
  }
  auto name = reader.name();
  if (!name || !reader.skip("{")) {
    return std::nullopt;
  }
  auto arguments = reader.members(':', '}');
  if (!arguments || !reader.at_end()) {
    return std::nullopt;
  }
  return Calls({{.name = *std::move(name), .arguments_json = *std::move(arguments)}});
}

constexpr std::string_view kDeepSeekBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kDeepSeekEnd = "<｜tool▁call▁end｜>";

// V3.1 writes the arguments behind the separator, V3 the name and then a block of code.
Calls deepseek_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (text = trimmed(text); !text.empty(); text = trimmed(text)) {
    if (!skip(text, kDeepSeekBegin) || text.find(kDeepSeekEnd) == std::string_view::npos) {
      return std::nullopt;
    }
    std::string_view body = take_until(text, kDeepSeekEnd);
    std::string_view name = trimmed(take_until(body, kDeepSeekSeparator));
    if (name == "function" && body.find("```json") != std::string_view::npos) {
      name = trimmed(take_until(body, "```json"));
      body = body.substr(0, body.rfind("```"));
    }
    auto arguments = parse_arguments(body);
    if (name.empty() || !arguments) {
      return std::nullopt;
    }
    calls.push_back({.name = std::string(name), .arguments_json = *std::move(arguments)});
  }
  return calls;
}

Calls parse(CallForm form, std::string_view marked, const ToolSchemas& schemas) {
  switch (form) {
    case CallForm::kJson:
      return json_calls(without_specials(marked));
    case CallForm::kLlama:
      return llama_calls(without_specials(marked));
    case CallForm::kMistral:
      return mistral_calls(with_spelled(marked, {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}));
    case CallForm::kXml:
      return xml_calls(without_specials(marked), schemas);
    case CallForm::kGlm:
      return glm_calls(
          with_spelled(marked, {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}),
          schemas);
    case CallForm::kPython:
      return python_calls(without_specials(marked));
    case CallForm::kGemma:
      return gemma_calls(with_spelled(marked, {"<|\"|>"}));
    case CallForm::kDeepSeek:
      break;
  }
  return deepseek_calls(with_spelled(marked, {kDeepSeekBegin, kDeepSeekSeparator, kDeepSeekEnd}));
}

}  // namespace

Calls parse_calls(CallForm form, std::string_view marked, const ToolSchemas& schemas) {
  Calls calls = parse(form, marked, schemas);
  return calls && calls->empty() ? std::nullopt : std::move(calls);
}

std::optional<std::string> parse_arguments(std::string_view text) {
  const auto json = base::parse_json(trimmed(text), "arguments");
  return json.ok() && json->view().is_object() ? std::optional(base::write_json(*json))
                                               : std::nullopt;
}

bool ends_in_quotes(CallForm form, std::string_view marked) {
  if (form != CallForm::kJson) {
    return false;
  }
  JsonWalk walk;
  for (const char c : marked) {
    walk.step(c);
  }
  return walk.in_text();
}

}  // namespace quire::text::answer
