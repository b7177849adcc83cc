#include "conversation.h"

#include <boost/json.hpp>
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

// Whether text given as `documents` appears in what the template makes.
bool shows_documents(const Tokenizer& tokenizer) {
  const auto prompt =
      tokenizer.render_chat_template(R"([{"role": "user", "content": "question"}])", true,
                                     R"({"documents": [{"title": "", "text": "probe text"}]})");
  return prompt.ok() && prompt.value().find("probe text") != std::string::npos;
}

}  // namespace

Result<Conversation> Conversation::open(const ChatOptions& options, const Tokenizer& tokenizer) {
  Conversation conversation;
  std::string system = options.system;
  json::array documents;
  const bool as_documents = !options.document_files.empty() && shows_documents(tokenizer);
  for (const std::string& path : options.document_files) {
    QUIRE_TRY(const std::string text, read_text(path));
    if (as_documents) {
      documents.emplace_back(json::object{{"title", path}, {"text", text}});
    } else {
      system += (system.empty() ? "" : "\n\n") + text;
    }
  }
  if (as_documents) {
    conversation.variables_["documents"] = std::move(documents);
  }
  if (!system.empty()) {
    conversation.add("system", system);
  }
  return conversation;
}

void Conversation::add(std::string_view role, std::string_view text) {
  messages_.emplace_back(json::object{{"role", role}, {"content", text}});
}

}  // namespace quire::cli
