// Chats in which chunks are named (rule O8).
#include <utility>

#include "api/call.h"
#include "api/chat.h"
#include "api/errors.h"

namespace quire::server {

void chat_with_chunks(Services& services, CallPtr call, ChatRequest /*request*/) {
  ApiError error = invalid("messages", "chunks in a chat are not there yet");
  error.code = "invalid_composition";
  send_error(services, *call, std::move(error));
}

}  // namespace quire::server
