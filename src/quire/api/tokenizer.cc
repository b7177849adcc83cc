#include "quire/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/api/tokenizer_impl.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/base/work_meter.h"
#include "quire/chat.h"
#include "quire/contexts/turn_format.h"
#include "quire/engine/model_bundle.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/text/byte_alphabet.h"
#include "quire/text/chat_template.h"
#include "quire/text/tokenizer.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire {
namespace {

bool is_list_of_objects(base::JsonView list) {
  return list.is_array() && std::ranges::all_of(list.elements(), &base::JsonView::is_object);
}

Result<text::RenderedPrompt> render(const engine::TextBundle& text, std::string_view messages_json,
                                    bool add_generation_prompt, std::string_view variables_json,
                                    base::WorkMeter& meter) {
  meter.grant(text::work_for_bytes(messages_json.size() + variables_json.size()));
  QUIRE_TRY(auto messages, base::parse_json(messages_json, "messages"));
  QUIRE_TRY(auto variables, base::parse_json(variables_json, "template variables"));
  if (!is_list_of_objects(messages)) {
    return {ErrorCode::kInvalidArgument, "messages must be a list of {role, content}"};
  }
  if (!variables.view().is_object()) {
    return {ErrorCode::kInvalidArgument, "template variables must be an object"};
  }
  return contexts::render_chat(text, std::move(messages), add_generation_prompt,
                               std::move(variables), &meter);
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Returns the byte that a spelling such as "<0x0A>" stands for.
std::optional<std::string> bytes_of_fallback(std::string_view spelling) {
  unsigned char byte = 0;
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || !spelling.ends_with('>')) {
    return std::nullopt;
  }
  const char* const end = spelling.data() + 5;
  const auto read = std::from_chars(spelling.data() + 3, end, byte, 16);
  return read.ptr == end ? std::optional(std::string(1, static_cast<char>(byte))) : std::nullopt;
}

// Returns the chat template that is used with or without tools, or null.
const text::ChatTemplate* template_of(const engine::TextBundle& text, bool with_tools) {
  const auto& used = with_tools && text.tool_template ? text.tool_template : text.chat_template;
  return used ? &*used : nullptr;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<Tokenizer> Tokenizer::open(const std::string& model) try {
  QUIRE_TRY(auto text, engine::open_text(model));
  return wrap_tokenizer(std::move(text));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                               const Interrupt& interrupted) const try {
  base::WorkMeter meter(text::kWorkOfCall, interrupted);
  return impl_->text->tokenizer.encode(text,
                                       {.add_special_tokens = add_special_tokens, .meter = &meter});
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<TokenId>> Tokenizer::encode_literally(std::string_view text,
                                                         const Interrupt& interrupted) const try {
  base::WorkMeter meter(text::kWorkOfCall, interrupted);
  return impl_->text->tokenizer.encode(
      text, {.add_special_tokens = false, .parse_special = false, .meter = &meter});
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens,
                                      const Interrupt& interrupted) const try {
  base::WorkMeter meter(text::kWorkOfCall, interrupted);
  return impl_->text->tokenizer.decode(ids, skip_special_tokens, &meter);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> Tokenizer::id_to_token(TokenId id) const try {
  return impl_->text->tokenizer.id_to_token(id);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

// Decodes the id behind itself, where no leading space is dropped. Bytes that are no whole
// characters decode to U+FFFD: then the spelling says which they are.
Result<std::string> Tokenizer::token_bytes(TokenId id) const try {
  const text::Tokenizer& tokenizer = impl_->text->tokenizer;
  QUIRE_TRY(const std::string spelling, tokenizer.id_to_token(id));
  const std::vector<TokenId> twice = {id, id};
  QUIRE_TRY(const std::string once, tokenizer.decode(std::span(twice).first(1), false));
  QUIRE_TRY(const std::string both, tokenizer.decode(twice, false));
  if (once.find(kReplacement) == std::string::npos) {
    return both.starts_with(once) ? both.substr(once.size()) : once;
  }
  if (auto byte = bytes_of_fallback(spelling)) {
    return *std::move(byte);
  }
  return text::bytes_of_spelling(spelling).value_or(once);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->text->tokenizer.token_to_id(token);
}

Result<std::vector<TokenId>> Tokenizer::apply_chat_template(std::string_view messages_json,
                                                            bool add_generation_prompt,
                                                            std::string_view variables_json,
                                                            const Interrupt& interrupted) const
    try {
  base::WorkMeter meter(text::kWorkOfCall, interrupted);
  QUIRE_TRY(const auto prompt,
            render(*impl_->text, messages_json, add_generation_prompt, variables_json, meter));
  return text::encode_prompt(impl_->text->tokenizer, prompt, &meter);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> Tokenizer::render_chat_template(std::string_view messages_json,
                                                    bool add_generation_prompt,
                                                    std::string_view variables_json,
                                                    const Interrupt& interrupted) const try {
  base::WorkMeter meter(text::kWorkOfCall, interrupted);
  QUIRE_TRY(const auto prompt,
            render(*impl_->text, messages_json, add_generation_prompt, variables_json, meter));
  return prompt.text();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<TokenId>> Tokenizer::apply_chat_template(std::span<const ChatMessage> messages,
                                                            bool add_generation_prompt,
                                                            std::string_view variables_json,
                                                            const Interrupt& interrupted) const {
  QUIRE_TRY(const std::string json, to_json(messages));
  return apply_chat_template(json, add_generation_prompt, variables_json, interrupted);
}

Result<std::string> Tokenizer::render_chat_template(std::span<const ChatMessage> messages,
                                                    bool add_generation_prompt,
                                                    std::string_view variables_json,
                                                    const Interrupt& interrupted) const {
  QUIRE_TRY(const std::string json, to_json(messages));
  return render_chat_template(json, add_generation_prompt, variables_json, interrupted);
}

bool Tokenizer::has_chat_template() const { return impl_->text->chat_template.has_value(); }

std::vector<std::string> Tokenizer::template_variables(bool with_tools) const {
  const auto* const used = template_of(*impl_->text, with_tools);
  return used == nullptr ? std::vector<std::string>() : used->variables();
}

std::vector<std::string> Tokenizer::template_words(bool with_tools) const {
  const auto* const used = template_of(*impl_->text, with_tools);
  return used == nullptr ? std::vector<std::string>() : used->words();
}

std::int32_t Tokenizer::vocab_size() const { return impl_->text->tokenizer.vocab_size(); }

std::optional<TokenId> Tokenizer::bos_token_id() const {
  return impl_->text->tokenizer.bos_token_id();
}
std::optional<TokenId> Tokenizer::leading_bos_token_id() const {
  return contexts::make_turn_format(*impl_->text).bos;
}
std::optional<TokenId> Tokenizer::eos_token_id() const {
  return impl_->text->tokenizer.eos_token_id();
}
std::optional<TokenId> Tokenizer::pad_token_id() const {
  return impl_->text->tokenizer.pad_token_id();
}
std::optional<TokenId> Tokenizer::unk_token_id() const {
  return impl_->text->tokenizer.unk_token_id();
}

}  // namespace quire
