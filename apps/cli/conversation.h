// A conversation as the chat template takes it: messages, and the documents that they share.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "options.h"
#include "quire/result.h"
#include "quire/tokenizer.h"

namespace quire::cli {

// The system text that the chat template writes when it is given none; "" if it writes none.
[[nodiscard]] std::string default_system(const Tokenizer& tokenizer);

class Conversation {
 public:
  // Reads the documents. They become the template's own `documents` when it shows them, otherwise
  // a part of the system message.
  [[nodiscard]] static Result<Conversation> open(const ChatOptions& options,
                                                 const Tokenizer& tokenizer);

  void add_user(std::string_view text) { add("user", text); }

  [[nodiscard]] std::string messages_json() const { return boost::json::serialize(messages_); }
  [[nodiscard]] std::string variables_json() const { return boost::json::serialize(variables_); }

 private:
  void add(std::string_view role, std::string_view text);

  boost::json::array messages_;
  boost::json::object variables_;
};

}  // namespace quire::cli
