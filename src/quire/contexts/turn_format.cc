#include "quire/contexts/turn_format.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/engine/model_bundle.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/types.h"

namespace quire::contexts {
namespace {

constexpr std::string_view kAnswer = "quirequire";  // a text that no template writes

base::Json message(std::string_view role, std::string_view content) {
  return base::Json::object({{"role", role}, {"content", content}});
}

std::string rendered(const engine::TextBundle& text, base::Json messages, bool generation_prompt) {
  const auto prompt =
      render_chat(text, std::move(messages), generation_prompt, base::Json::object());
  return prompt.ok() ? prompt->text() : "";
}

// Encodes text of the template's own.
std::vector<TokenId> encode(const engine::TextBundle& text, std::string written) {
  if (written.empty()) {
    return {};
  }
  auto ids =
      text::encode_prompt(text.tokenizer, {.spans = {{.text = std::move(written), .from = {}}}});
  return ids.ok() ? std::move(ids).value() : std::vector<TokenId>();
}

// Finds the BOS token before any text: as the template begins, without one as the tokenizer does.
std::optional<TokenId> find_bos(const engine::TextBundle& text, const std::string& asked) {
  const std::optional<TokenId> bos = text.tokenizer.bos_token_id();
  const auto plain = text.tokenizer.encode("");
  const std::vector<TokenId> ids = text.chat_template ? encode(text, asked)
                                   : plain.ok()       ? *plain
                                                      : std::vector<TokenId>();
  return bos && !ids.empty() && ids.front() == *bos ? bos : std::nullopt;
}

}  // namespace

Result<text::RenderedPrompt> render_chat(const engine::TextBundle& text, base::Json messages,
                                         bool add_generation_prompt, base::Json variables,
                                         base::WorkMeter* meter) {
  const bool has_tools = !variables.view().find("tools").is_null();
  const bool for_tools = text.tool_template || !text.tool_template_error.empty();
  const auto& chat_template = has_tools && for_tools ? text.tool_template : text.chat_template;
  if (!chat_template) {
    const std::string& why =
        has_tools && for_tools ? text.tool_template_error : text.template_error;
    return {ErrorCode::kUnsupported, base::str_cat(why, "; use plain prompts (generate) instead")};
  }
  variables.set("messages", std::move(messages));
  variables.set("add_generation_prompt", add_generation_prompt);
  text::RenderOptions options{.meter = meter};
  text::add_model_variables(text.tokenizer, variables, options);
  return chat_template->render(variables, options);
}

TurnFormat make_turn_format(const engine::TextBundle& text) {
  TurnFormat format;
  const auto question = [] { return base::Json::array(message("user", "x")); };
  const std::string asked = rendered(text, question(), false);
  const std::string prompted = rendered(text, question(), true);
  format.bos = find_bos(text, asked);
  if (prompted.starts_with(asked)) {
    format.opening = encode(text, prompted.substr(asked.size()));
  }
  const std::string answered =
      rendered(text, base::Json::array(message("user", "x"), message("assistant", kAnswer)), false);
  const std::size_t answer = answered.rfind(kAnswer);
  if (answer != std::string::npos) {
    format.closing = encode(text, answered.substr(answer + kAnswer.size()));
  }
  return format;
}

}  // namespace quire::contexts
