// POST /v1/chat/completions (rules O2 to O8).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "api/call.h"
#include "api/completions.h"
#include "api/errors.h"
#include "api/generation.h"
#include "api/messages.h"
#include "api/openai.h"

namespace quire::server {

// A body of chat completions that was checked. Plain data.
struct ChatRequest {
  OpenAIRequest openai;
  ChatPrompt prompt;

  // Returns true where chunks are named (rule O8).
  [[nodiscard]] bool has_chunks() const;
};

// Table of the body.
[[nodiscard]] const FieldTable& chat_table();
// Reads a body that chat_table() has checked.
[[nodiscard]] Checked<ChatRequest> read_chat(const Services& services, Call& call);
// Reads a body without chunks, encodes it on a worker, and hands the plan to `take`.
void plan_chat(Services& services, CallPtr call, TakePlan take);
// Returns what renders the answers.
[[nodiscard]] std::unique_ptr<Renderer> chat_renderer(Services& services,
                                                      const OpenAIRequest& request);

// Answers a chat in which chunks are named. objects/chat_chunks.cc has it.
void chat_with_chunks(Services& services, CallPtr call, ChatRequest request);

}  // namespace quire::server
