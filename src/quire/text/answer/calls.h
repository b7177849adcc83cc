// The forms in which models write tool calls between their marks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chat.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {

// Form of the text between the marks of a call.
// * kJson: {"name", "arguments"} or a list of such objects. Llama 3 says "parameters", and writes
//   several objects with ";" between them.
// * kLlama: as kJson, or `name.call(key="text")`.
// * kMistral: a list of kJson, or `name[ARGS]{...}` with `[CALL_ID]id` in the middle, repeated.
// * kXml: <function=name><parameter=key>value</parameter></function>, of Qwen3-Coder and Qwen3.5.
// * kGlm: name<arg_key>key</arg_key><arg_value>value</arg_value>, of GLM-4.5 and later.
// * kPython: [name(key=value), ...], of LFM2.
// * kGemma: call:name{key:value}, of Gemma 4.
// * kDeepSeek: calls with marks of their own, of DeepSeek V3 and V3.1.
enum class CallForm : std::uint8_t {
  kJson,
  kLlama,
  kMistral,
  kXml,
  kGlm,
  kPython,
  kGemma,
  kDeepSeek,
};

// Returns the calls of a marked text, or nullopt where it does not parse as a whole. Ids are empty
// where the text has none. Never returns an empty list.
[[nodiscard]] std::optional<std::vector<ToolCall>> parse_calls(CallForm form,
                                                               std::string_view marked,
                                                               const ToolSchemas& schemas);
// Returns the arguments without blanks where the text is a JSON object, else nullopt.
[[nodiscard]] std::optional<std::string> parse_arguments(std::string_view text);
// Returns true where a text of the form ends inside of a quoted text, so that a mark behind it may
// belong to the call.
[[nodiscard]] bool ends_in_quotes(CallForm form, std::string_view marked);

}  // namespace quire::text::answer
