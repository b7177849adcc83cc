// Renders answers of chats in OpenAI's format, with thinking and tool calls apart.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/call.h"
#include "api/generation.h"
#include "api/openai.h"
#include "quire/types.h"

namespace quire::server {

// Everything that tells how to read the answers of a chat. Plain data.
struct AnswerSource {
  // Ids of the prompt, or of one that opens the answer in the same way.
  std::vector<TokenId> prompt_ids = {};
  // JSON of the tools that the template had, or "".
  std::string tools_json = {};
};

// Returns a renderer for the answers to a request.
[[nodiscard]] std::unique_ptr<Renderer> chat_renderer(Services& services,
                                                      const OpenAIRequest& request,
                                                      AnswerSource source);

}  // namespace quire::server
