// POST /v1/chat/completions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "api/call.h"
#include "api/chat_renderer.h"
#include "api/completions.h"
#include "api/errors.h"
#include "api/generation.h"
#include "api/messages.h"
#include "api/openai.h"

namespace quire::server {

// A checked body of chat completions. Plain data.
struct ChatRequest {
  OpenAIRequest openai;
  ChatPrompt prompt;
  AnswerSource answers;

  // Returns whether the messages name chunks.
  [[nodiscard]] bool has_chunks() const;
};

// Returns the table of the body.
[[nodiscard]] const FieldTable& chat_table();
// Reads a body that chat_table() has checked.
[[nodiscard]] Checked<ChatRequest> read_chat(const Services& services, Call& call);
// Reads a body without chunks, encodes it on a worker, and hands the plan to `take`.
void plan_chat(Services& services, CallPtr call, TakePlan take);

// Answers a chat whose messages name chunks. Defined in objects/chat_chunks.cc.
void chat_with_chunks(Services& services, CallPtr call, ChatRequest request);

}  // namespace quire::server
