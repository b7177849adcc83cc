// Messages of a chat in the form of OpenAI's bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "engine.h"
#include "quire/chat.h"
#include "quire/interrupt.h"
#include "quire/types.h"

namespace quire::server {

// A part of a message's content.
struct MessagePart {
  // "text" or "chunk".
  std::string type;
  std::string text;
  std::string chunk_id;
  // True: the prompt is held up to here.
  bool breakpoint = false;
};

// A checked message.
struct Message {
  // "system", "user", "assistant" or "tool".
  std::string role;
  std::vector<MessagePart> parts;
  std::string name;
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;

  [[nodiscard]] bool has_chunk() const;
  // Returns the text parts, one per line.
  [[nodiscard]] std::string text() const;
};

// Returns the table of a message.
[[nodiscard]] const FieldTable& message_table();

// Reads the messages of a list that message_table() has checked. `path` leads to it.
// Errors: 400 for a role, an order or contents that are not supported, and for parts that are not
// text.
[[nodiscard]] Checked<std::vector<Message>> read_messages(const json::array& list,
                                                          std::string_view path, FieldNotes& notes);

// A chat to turn into a prompt. Plain data.
struct ChatPrompt {
  std::vector<Message> messages;
  // Path of the list in the body.
  std::string path = "messages";
  // Further variables of the template.
  json::object variables;
  bool add_generation_prompt = true;
  // True: the last message goes on, without the text that the template puts behind it.
  bool continue_final_message = false;
};

// Notes `name` of messages as fields without effect.
void note_names(const ChatPrompt& prompt, FieldNotes& notes);

// A prompt that the template has rendered.
struct EncodedChat {
  std::vector<TokenId> ids;
  // True: the template reads names of messages.
  bool reads_names = true;
  // Tokens of the prompt up to the end of its last breakpoint, if it has one.
  std::optional<std::int64_t> breakpoint_tokens = {};
};

// Renders and encodes a chat, on a worker.
// Errors: 400 `template_error` with the template's text, `context_length_exceeded`, and
// `unsupported_parameter` for variables that the template does not read.
[[nodiscard]] Checked<EncodedChat> encode_chat(const Engine& engine, const ChatPrompt& prompt,
                                               const Interrupt& interrupted);
// Renders a chat as text, on a worker, with the errors of encode_chat().
[[nodiscard]] Checked<std::string> render_chat(const Engine& engine, const ChatPrompt& prompt,
                                               const Interrupt& interrupted);

}  // namespace quire::server
