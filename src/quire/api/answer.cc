#include "quire/answer.h"

#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "quire/api/tokenizer_impl.h"  // IWYU pragma: keep (Tokenizer::Impl)
#include "quire/base/no_memory.h"
#include "quire/chat.h"
#include "quire/engine/model_bundle.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/text/answer/answer_stream.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {

struct AnswerParser::Impl {
  Impl(std::shared_ptr<const engine::TextBundle> bundle, const text::answer::Style& style,
       std::span<const TokenId> prompt_ids, text::answer::ToolSchemas schemas)
      : text(std::move(bundle)), stream(text->tokenizer, style, prompt_ids, std::move(schemas)) {}

  std::shared_ptr<const engine::TextBundle> text;  // outlives the stream, which borrows from it
  text::answer::AnswerStream stream;
};

AnswerParser::AnswerParser(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;
AnswerParser::~AnswerParser() = default;

Result<AnswerParts> AnswerParser::take(const Delta& delta) try {
  return impl_->stream.take(delta.text, delta.token_ids, delta.finished);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<AnswerParser> Tokenizer::answer_parser(std::span<const TokenId> prompt_ids,
                                              std::string_view tools_json) const try {
  QUIRE_TRY(auto schemas, text::answer::ToolSchemas::read(tools_json));
  const auto& text = impl_->text;
  const auto& used =
      !schemas.empty() && text->tool_template ? text->tool_template : text->chat_template;
  const auto style =
      used ? text::answer::find_style(used->source(), text->tokenizer) : text::answer::Style();
  return AnswerParser(
      std::make_unique<AnswerParser::Impl>(text, style, prompt_ids, std::move(schemas)));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status split_answer(const Tokenizer& tokenizer, std::string_view tools_json,
                    GenerationOutput& output) {
  QUIRE_TRY(AnswerParser parser, tokenizer.answer_parser(output.prompt_token_ids, tools_json));
  QUIRE_TRY(output.answer,
            parser.take({.text = output.text, .token_ids = output.token_ids, .finished = true}));
  for (GenerationOutput& choice : output.outputs) {
    QUIRE_TRY_STATUS(split_answer(tokenizer, tools_json, choice));
  }
  return {};
}

}  // namespace quire
