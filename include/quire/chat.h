// Messages of a chat, for LLM::chat and Tokenizer::apply_chat_template, and the parts of an answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"

namespace quire {

// A call of a function that the model has asked for. Plain data.
struct ToolCall {
  // Id that the answer of the tool refers to. Empty: none.
  std::string id = {};
  // Name of the function.
  std::string name = {};
  // Arguments of the function, a JSON object.
  std::string arguments_json = "{}";
};

// The parts of an answer, as the marks of the chat template's style tell them apart. Plain data.
// A part of a stream's delta has what became certain with it; joined they equal the whole answer's.
struct AnswerParts {
  // Text of the thinking, without its marks and the white space around it.
  std::string thinking = {};
  // Text of the answer without thinking and tool calls. Equals the whole text where no part came.
  std::string content = {};
  // Calls of functions, each whole. Every id is set.
  std::vector<ToolCall> tool_calls = {};
  // Number of generated tokens of the thinking, with the one that opens and the one that closes it.
  std::int64_t thinking_tokens = 0;
};

// A message of a chat. Plain data. The model's chat template decides which roles and members it
// reads. Members that are empty are not given to the template, except for `role` and `content`.
struct ChatMessage {
  // "system", "user", "assistant", "tool" or another word that the template knows.
  std::string role = {};
  // The text. It never becomes a special token.
  std::string content = {};
  // Name of whoever speaks.
  std::string name = {};
  // For an assistant: calls of functions. The template sees each as
  // {"id", "type": "function", "function": {"name", "arguments"}}.
  std::vector<ToolCall> tool_calls = {};
  // For a tool: id of the call that the message answers.
  std::string tool_call_id = {};
};

// Returns the messages as a JSON list, as calls that take `messages_json` read it. The caller owns
// the text, whose ill-formed UTF-8 became U+FFFD. O(text). Any thread may call; nothing waits.
// Errors: kInvalidArgument for arguments_json that is no JSON object. kOutOfBlocks when the machine
// refuses memory.
[[nodiscard]] QUIRE_API Result<std::string> to_json(std::span<const ChatMessage> messages);

}  // namespace quire
