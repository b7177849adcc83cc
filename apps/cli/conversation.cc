#include "conversation.h"

#include <boost/json.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "generate.h"
#include "options.h"
#include "quire/result.h"
#include "quire/tokenizer.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

// Returns whether the template shows text given as `documents`.
bool shows_documents(const Tokenizer& tokenizer) {
  const auto prompt =
      tokenizer.render_chat_template(R"([{"role": "user", "content": "question"}])", true,
                                     R"({"documents": [{"title": "", "text": "probe text"}]})");
  return prompt.ok() && prompt.value().find("probe text") != std::string::npos;
}

constexpr std::string_view kSystem = "quire system";
constexpr std::string_view kQuestion = "quire question";

// Returns the template's text for a question behind `messages`, or "" if the template refuses.
std::string rendered(const Tokenizer& tokenizer, json::array messages) {
  messages.emplace_back(json::object{{"role", "user"}, {"content", kQuestion}});
  const auto prompt = tokenizer.render_chat_template(json::serialize(messages), true);
  return prompt.ok() ? prompt.value() : "";
}

}  // namespace

// Finds the default system text. A prompt with a system text shows the texts before and behind it.
// In a prompt without one, the default system text stands between these two.
std::string default_system(const Tokenizer& tokenizer) {
  const std::string given =
      rendered(tokenizer, {json::object{{"role", "system"}, {"content", kSystem}}});
  const std::string bare = rendered(tokenizer, {});
  const std::size_t start = given.find(kSystem);
  const std::size_t question = given.find(kQuestion);
  const std::size_t bare_question = bare.find(kQuestion);
  if (start == std::string::npos || question == std::string::npos || question < start ||
      bare_question == std::string::npos || !bare.starts_with(given.substr(0, start))) {
    return "";
  }
  const std::string behind =
      given.substr(start + kSystem.size(), question - start - kSystem.size());
  const std::string between = bare.substr(start, bare_question - start);
  return between.ends_with(behind) ? between.substr(0, between.size() - behind.size()) : "";
}

Result<Conversation> Conversation::open(const ChatOptions& options, const Tokenizer& tokenizer) {
  Conversation conversation;
  std::string system = options.system;
  const bool as_documents = !options.document_files.empty() && shows_documents(tokenizer);
  for (const std::string& path : options.document_files) {
    QUIRE_TRY(std::string text, read_text(path));
    if (as_documents) {
      conversation.documents_.push_back({.title = path, .text = std::move(text)});
    } else {
      system += (system.empty() ? "" : "\n\n") + text;
    }
  }
  if (!system.empty()) {
    conversation.messages_.push_back({.role = "system", .content = std::move(system)});
  }
  return conversation;
}

void Conversation::add_user(std::string text) {
  messages_.push_back({.role = "user", .content = std::move(text)});
}

std::string Conversation::messages_json() const {
  json::array messages;
  for (const auto& [role, content] : messages_) {
    messages.emplace_back(json::object{{"role", role}, {"content", content}});
  }
  return json::serialize(messages);
}

std::string Conversation::variables_json() const {
  json::array documents;
  for (const auto& [title, text] : documents_) {
    documents.emplace_back(json::object{{"title", title}, {"text", text}});
  }
  json::object variables;
  if (!documents.empty()) {
    variables["documents"] = std::move(documents);
  }
  return json::serialize(variables);
}

}  // namespace quire::cli
