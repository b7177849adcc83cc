// A conversation as the chat template takes it: messages, and the documents that they share.
#pragma once

#include <string>
#include <vector>

#include "options.h"
#include "quire/result.h"
#include "quire/tokenizer.h"

namespace quire::cli {

// Returns the system text that the chat template writes when it is given none, or "".
[[nodiscard]] std::string default_system(const Tokenizer& tokenizer);

class Conversation {
 public:
  // Reads the documents. They become the template's own `documents` when it shows them, otherwise
  // a part of the system message.
  [[nodiscard]] static Result<Conversation> open(const ChatOptions& options,
                                                 const Tokenizer& tokenizer);

  void add_user(std::string text);

  [[nodiscard]] std::string messages_json() const;
  [[nodiscard]] std::string variables_json() const;

 private:
  struct Message {
    std::string role, content;
  };
  struct Document {
    std::string title, text;
  };
  std::vector<Message> messages_;
  std::vector<Document> documents_;
};

}  // namespace quire::cli
